"""The lifecycle's order of closing, with fakes in place of the process."""

from pathlib import Path
from typing import cast

import pytest
import structlog

from tests.support.settings import make_settings
from tidegate.core.errors import UnavailableError
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle import ProcessPorts, ServiceLifecycle
from tidegate.runtime.service import Channels, ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.telemetry import Telemetry
from tidegate.wire.subjects import Topology


class ClosedTelemetry:
    """Records that it was closed, which is when telemetry is flushed."""

    closed = False

    def close(self) -> None:
        self.closed = True


async def test_telemetry_is_flushed_when_there_is_no_broker(tmp_path: Path) -> None:
    telemetry = ClosedTelemetry()

    async def open_no_bus(_topology: Topology) -> Bus:
        raise UnavailableError("There is no broker")

    async def build(_context: ServiceContext, _config: object) -> ServiceParts:
        raise AssertionError("nothing is built without a broker")

    ports = ProcessPorts(
        clock=SystemClock(),
        drain=Drain(),
        log=structlog.get_logger(),
        channels=Channels(
            {}, open_channel=lambda _address: pytest.fail("nothing is called without a broker")
        ),
        open_telemetry=lambda _stats: cast("Telemetry", telemetry),
        open_bus=open_no_bus,
        open_server=lambda _registrations, _meter: pytest.fail("nothing serves without a broker"),
        record_usage=lambda _stats: None,
        on_built=lambda: None,
    )
    settings = make_settings(tmp_path, broker_url="nats://nowhere:1")
    spec = ServiceSpec("admission", object, build)
    with pytest.raises(UnavailableError):
        await ServiceLifecycle(spec, None, settings, index=0, ports=ports).run()
    assert telemetry.closed
