"""Fixtures of the integration tests: a real broker, and a bus connected to it."""

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.support.broker import Broker
from tidegate.core.ids import RunId
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.wire.subjects import Topology


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], AbstractEventLoop]]:
    """The loop that services run on, which fails in its own ways."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Broker]:
    """A running nats-server with JetStream on file storage."""
    broker = Broker(tmp_path / "nats")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def topology() -> Topology:
    """The names of one run."""
    return Topology(RunId("test-run"))


@pytest.fixture
async def bus(nats: Broker, topology: Topology) -> AsyncIterator[Bus]:
    """A connection with every stream of the run in place."""
    bus = await Bus.connect(nats.url, token="", name="test", topology=topology, clock=SystemClock())
    await bus.bootstrap(topology.streams(max_tasks=64))
    yield bus
    await bus.close()
