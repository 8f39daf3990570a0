"""Fixtures of the integration tests: a real broker, and a bus connected to it."""

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.broker import Broker, SharedBrokers, own_broker
from tidegate.core.ids import RunId
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.wire.subjects import Topology


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], AbstractEventLoop]]:
    """The event loop that services run on, with its specific failures."""
    return {"uvloop": new_event_loop}


def new_event_loop() -> AbstractEventLoop:
    """uvloop, ended by pytest-timeout: what its signal handler raises is only logged by uvloop otherwise."""
    loop = uvloop.new_event_loop()
    loop.set_exception_handler(_stop_at_timeout)
    return loop


def _stop_at_timeout(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), pytest.fail.Exception):
        loop.stop()  # the test fails: its loop stopped before it was done
    else:
        loop.default_exception_handler(context)


@pytest.fixture(scope="session")
def shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBrokers]:
    """The session's servers; each worker of pytest-xdist has separate ones."""
    brokers = SharedBrokers(tmp_path_factory.mktemp("nats"))
    yield brokers
    brokers.close()


@pytest.fixture
def nats(request: pytest.FixtureRequest, tmp_path: Path, shared_brokers: SharedBrokers) -> Iterator[Broker]:
    """A broker with JetStream on file storage, empty; tests that kill or restart it are marked with own_broker."""
    if request.node.get_closest_marker("own_broker") is None:
        yield shared_brokers.lend()
    else:
        broker = own_broker(tmp_path / "nats")
        yield broker
        broker.kill()


@pytest.fixture
def topology() -> Topology:
    """The names of one run."""
    return Topology(RunId("test-run"))


@pytest.fixture
async def bus(nats: Broker, topology: Topology) -> AsyncIterator[Bus]:
    """A connection with every stream of the run in place."""
    bus = await Bus.connect(nats.url, name="test", topology=topology, clock=SystemClock())
    await bus.bootstrap(topology.streams(max_tasks=64))
    yield bus
    await bus.close()
