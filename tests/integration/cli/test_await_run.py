"""`tidegate await` asks the processes: what others publish on the broker ends no wait."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from rich.console import Console

from tests.support.broker import Broker, free_port
from tests.support.call_credentials import SECRET, accepted
from tidegate.catalogue import learner, task_queue, trajectory_store
from tidegate.cli.await_run import wait_for
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import RunId
from tidegate.core.targets import RunTarget, parse_target
from tidegate.launch.broker import BrokerEndpoint
from tidegate.launch.run_record import FORMAT, RunRecord
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle_servicer import LifecycleServicer
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.stats_reports import publish_stats
from tidegate.wire.stats import ServiceStats
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

GROWING = (
    ("task_queue", task_queue.ADMITTED),
    ("trajectory_store", trajectory_store.TRAINED),
    ("learner", learner.VERSION_STEP),
)
TARGET = parse_target("version_step>=200")
# A wait that forged statistics end returns instead. The first is long enough for some answers, but on a busy machine.
WAITS_S = (3.0, 30.0)


class Run:
    """Three services that answer for themselves, and a broker on which others report in their names."""

    def __init__(self, record: RunRecord, boards: dict[str, StatsBoard]) -> None:
        self.record = record
        self.boards = boards

    async def wait(self, target: RunTarget, *, timeout_s: float) -> None:
        await wait_for(self.record, target, timeout_s=timeout_s, console=Console(quiet=True))

    def train(self) -> None:
        """One more update."""
        for service, name in GROWING:
            self.boards[service].set(name, self.boards[service].value(name) + 1)


@pytest.fixture
async def run(nats: Broker, bus: Bus, topology: Topology) -> AsyncIterator[Run]:
    boards = {
        service: StatsBoard(service=service, instance=service, started_at_s=0.0) for service, _ in GROWING
    }
    addresses = {service: [f"127.0.0.1:{free_port()}"] for service in boards}
    async with AsyncExitStack() as stack:
        for service, board in boards.items():
            servicer = LifecycleServicer(board, Drain(), SystemClock())
            server = RpcServer([servicer.registration()], accepted())
            await server.start(addresses[service][0])
            await server.set_serving(serving=True)
            stack.push_async_callback(server.stop, grace_s=0.1)
        record = RunRecord(
            format=FORMAT,
            run_id=RunId(topology.run_id),
            created_at_s=0.0,
            run_file={},
            broker=BrokerEndpoint(port=0, elsewhere=nats.url),
            addresses=addresses,
            call_secret=SECRET,
        )
        forging = asyncio.create_task(forge(bus, topology))
        try:
            yield Run(record, boards)
        finally:
            forging.cancel()


async def forge(bus: Bus, topology: Topology) -> None:
    """Reports of an ever later version, in the names of the learner's and of an actor's process."""
    for number in range(1_000_000, 2_000_000):
        values = {str(name): float(number) for _, name in GROWING}
        for service, instance in (("learner", "learner"), ("actor", "actor-0")):
            stats = ServiceStats(service, instance, "ready", time.time(), 0.0, values)
            await publish_stats(bus, topology, stats)
        await asyncio.sleep(0.02)


async def assert_not_reached(run: Run, target: RunTarget, *, status: str) -> None:
    """Its time passes, and the processes' answers are why."""
    found: list[str] = []
    for wait_s in WAITS_S:
        with pytest.raises(UnavailableError) as ended:
            await run.wait(target, timeout_s=wait_s)
        found.append(str(ended.value))
        if status in found[-1]:
            return
    pytest.fail(f"no answer of the processes: {found}")


async def test_forged_statistics_end_no_wait_for_a_target(run: Run) -> None:
    for service, name in GROWING:
        run.boards[service].set(name, 3.0)
    await assert_not_reached(run, TARGET, status="'version_step': 3.0")
    run.boards["learner"].set(learner.VERSION_STEP, 200.0)
    await run.wait(TARGET, timeout_s=120.0)


async def test_forged_growth_is_no_update(run: Run) -> None:
    for service, name in GROWING:
        run.boards[service].set(name, 3.0)
    await assert_not_reached(run, parse_target(""), status="no growth of")
    waiting = asyncio.create_task(run.wait(parse_target(""), timeout_s=120.0))
    while not waiting.done():
        run.train()
        await asyncio.sleep(0.1)
    await waiting
