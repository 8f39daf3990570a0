"""kill -9 of the store's process, and of the broker, in the middle of work: nothing is lost, nothing counts twice."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.call_credentials import permitted_channel
from tests.support.consumers import create_missing
from tests.support.settings import make_settings
from tests.unit.trajectory_store.building import MAIN, at, counted, make_trajectory
from tidegate.core.audit import LedgerTotals
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import Fresh, Lineage, StalenessLimits
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.trajectory_store.reading import LEDGER_FILE, ids, totals
from tidegate.wire.clients.streamed_batches import LeasedBatch
from tidegate.wire.clients.trajectory_store import Consumption, TrajectoryStoreClient
from tidegate.wire.frame import encode_frame
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS, Topology

pytestmark = [pytest.mark.integration, pytest.mark.kill]

ResultT = TypeVar("ResultT")
NUM_TRAJECTORIES = 240
BATCH_SIZE = 8
# Of a busy machine, which may take a minute to start a process.
PATIENCE_S = 120.0
LIMITS = StalenessLimits(max_lag=1000, max_age_s=600.0)


class Killable:
    """The store's process on one folder and port; it may die and be started again."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings_file = folder / "settings.json"
        self._settings_file.write_bytes(msgspec.json.encode(settings))
        self._log = folder / "store.log"
        self.ledger = Path(settings.data_dir) / "trajectory_store" / LEDGER_FILE
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        module = Path(__file__).with_name("store_process.py")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(module), str(self._settings_file)], stdout=log, stderr=log
            )

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        self._process.kill()
        self._process.wait(timeout=PATIENCE_S)

    def stop(self) -> int:
        """As a supervisor does; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=PATIENCE_S)


@pytest.fixture
async def store(
    nats: Broker, bus: Bus, topology: Topology, tmp_path: Path
) -> AsyncIterator[tuple[Killable, TrajectoryStoreClient]]:
    settings = make_settings(tmp_path / "run", broker_url=nats.url, max_lag=LIMITS.max_lag)
    await create_missing(bus, [topology.trajectory_consumer(0)])
    process = Killable(settings, tmp_path)
    process.start()
    channel = permitted_channel(settings.addresses["trajectory_store"][0])
    client = TrajectoryStoreClient(channel)
    await patiently(lambda: client.open_lineage(Lineage(name=MAIN), learner_id="learner-0"))
    yield process, client
    await channel.close()
    process.stop()


async def patiently(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Repeat a call until the store is there again, as every client does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except UnavailableError:
                await asyncio.sleep(0.05)


async def publish_all(bus: Bus, topology: Topology) -> None:
    """Every trajectory once, and every third one again under another message id: a retry the broker cannot see."""
    slots = asyncio.Semaphore(8)

    async def publish(index: int, suffix: str) -> None:
        record = make_trajectory(f"t-{index}", started_at_s=SystemClock().now_s())
        async with slots:
            await bus.publish(
                topology.trajectories(0),
                encode_frame([record]),
                message_id=f"{record.task_id}:{suffix}",
                headers={HEADER_TRAJECTORY_IDS: record.trajectory_id},
                deadline_s=PATIENCE_S,
            )
            await asyncio.sleep(0.02)

    again = [publish(index, "again") for index in range(0, NUM_TRAJECTORIES, 3)]
    await asyncio.gather(*(publish(index, "first") for index in range(NUM_TRAJECTORIES)), *again)


async def train_all(client: TrajectoryStoreClient, num: int) -> int:
    """Lease and commit until ``num`` trajectories were trained; returns the number of updates."""
    step = num_trained = 0
    while num_trained < num:
        batch = await patiently(partial(lease, client, at(step)))
        if batch is None:
            continue
        consumptions = [
            Consumption(item.trajectory_id, Fresh(lag=step, span=0, age_s=0.1)) for item in batch.trajectories
        ]
        await patiently(
            partial(client.commit_batch, batch.batch_id, version=at(step), consumptions=consumptions)
        )
        num_trained += len(batch.trajectories)
        step += 1
    return step


async def lease(client: TrajectoryStoreClient, version: PolicyVersion) -> LeasedBatch | None:
    return await client.lease_batch(
        version, batch_size=BATCH_SIZE, limits=LIMITS, max_wait_s=2.0, learner_id="learner-0"
    )


async def accepted(client: TrajectoryStoreClient) -> LedgerTotals:
    return (await patiently(client.ledger))[0]


async def until_rows(client: TrajectoryStoreClient, num: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await accepted(client)).rows() < num:
            await asyncio.sleep(0.02)


async def until_taken_in(bus: Bus, topology: Topology) -> None:
    """Until the store has acknowledged every message: published is not yet counted."""
    async with asyncio.timeout(PATIENCE_S):
        while (await bus.stream_state(topology.stream("TRAJECTORIES"))).messages:
            await asyncio.sleep(0.02)


async def test_killed_store_restarts_with_the_same_ledger(
    store: tuple[Killable, TrajectoryStoreClient], bus: Bus, topology: Topology
) -> None:
    process, client = store
    publishing = asyncio.create_task(publish_all(bus, topology))
    training = asyncio.create_task(train_all(client, NUM_TRAJECTORIES))
    for share in (0.2, 0.5, 0.8):
        await until_rows(client, int(share * NUM_TRAJECTORIES))
        process.kill()
        process.start()
    await publishing
    num_updates = await training
    await until_taken_in(bus, topology)
    assert num_updates == NUM_TRAJECTORIES // BATCH_SIZE
    live = await accepted(client)
    assert (live.trained, live.rows()) == (NUM_TRAJECTORIES, NUM_TRAJECTORIES)
    assert live.trained_twice == 0
    assert live.duplicates >= NUM_TRAJECTORIES // 3
    assert sorted(ids(process.ledger)) == sorted(f"t-{index}.0" for index in range(NUM_TRAJECTORIES))
    process.kill()
    stopped, judged = counted(process.ledger), totals(process.ledger).budgets
    process.start()
    assert stopped == live
    assert (judged.over, judged.unnoted) == (0, 0)


@pytest.mark.own_broker
async def test_killed_broker_costs_a_pause_and_no_trajectory(
    store: tuple[Killable, TrajectoryStoreClient], nats: Broker, bus: Bus, topology: Topology
) -> None:
    _, client = store
    publishing = asyncio.create_task(publish_all(bus, topology))
    await until_rows(client, NUM_TRAJECTORIES // 3)
    await nats.restart(down_s=0.5)
    await publishing
    await until_taken_in(bus, topology)
    counted = await accepted(client)
    assert (counted.rows(), counted.available) == (NUM_TRAJECTORIES, NUM_TRAJECTORIES)


async def test_stopped_store_exits_cleanly_in_the_middle_of_long_polls(
    store: tuple[Killable, TrajectoryStoreClient],
) -> None:
    process, client = store
    waiting = asyncio.create_task(
        client.lease_batch(at(0), batch_size=1, limits=LIMITS, max_wait_s=30.0, learner_id="learner-0")
    )
    await client.ledger()  # answered behind the lease, on one connection: the lease is waiting
    exit_code = await asyncio.to_thread(process.stop)
    assert exit_code == 0
    assert await waiting is None
    process.start()
