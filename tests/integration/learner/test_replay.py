"""A learner that trains on units of a real store's replay, and what both sides count."""

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.learner.fake_store import FakeStore
from tests.integration.learner.world import CONFIG, TIMEOUT_S, World, until
from tests.support.call_credentials import accepted
from tests.support.replay import Stream
from tests.support.replay_trainer import CountingTrainer, CountingTrainers
from tests.support.settings import make_settings
from tests.unit.trajectory_store.replay.building import UNITS, N, T, replay_config, segment_message
from tidegate.catalogue import learner as learner_stats
from tidegate.core.audit import ReplayTotals, replay_problems
from tidegate.core.errors import RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import StalenessLimits
from tidegate.learner import main
from tidegate.learner.algorithm import ALGORITHMS, AlgorithmEntry
from tidegate.learner.checkpoint import checkpoints_in, sampled_units
from tidegate.learner.optim.registry import TrainerSetting
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.rpc import RpcServer
from tidegate.trajectory_store import reading
from tidegate.trajectory_store.replay.plan import plan_replay
from tidegate.trajectory_store.servicer import TrajectoryStoreServicer
from tidegate.trajectory_store.store import Store
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

BATCH = 16


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> CountingTrainers:
    """What every learner of the test opens its trainer from."""
    made = CountingTrainers()
    monkeypatch.setitem(ALGORITHMS, "actor_critic", AlgorithmEntry(("mlp",), replay="transition"))

    def open_next(setting: TrainerSetting) -> CountingTrainer:
        del setting
        return made.open()

    monkeypatch.setattr(main, "open_trainer", open_next)
    return made


@dataclass
class ReplayWorld:
    """A store that replays, in this process, beside the world of a learner."""

    world: World
    config: Any
    server: AsyncExitStack = field(default_factory=AsyncExitStack)
    stream: Stream = field(default_factory=lambda: Stream(7, num_envs=N, end_chance=0.1))
    num_inserted: int = 0

    @property
    def folder(self) -> Path:
        return Path(self.world.settings.data_dir)

    async def start_store(self) -> None:
        """A new life of the store, which ends the one before without a word."""
        await self.server.aclose()
        settings = self.world.settings
        plan = plan_replay(
            self.config,
            settings.workload,
            batch_size=settings.batch_size,
            max_lag=settings.staleness.max_lag,
            seed=settings.seed,
        )
        now_s = time.time()
        self.store = Store(
            self.folder / "store", run_id=settings.run, config=self.config, now_s=now_s, replay=plan
        )
        self.server.callback(self.store.close)
        staleness = settings.staleness
        limits = StalenessLimits(max_lag=staleness.max_lag, max_age_s=staleness.max_age_s)
        server = RpcServer(
            [TrajectoryStoreServicer(self.store, SystemClock(), budget=lambda: limits).registration()],
            accepted(),
        )
        await server.start(settings.addresses["trajectory_store"][0])
        self.server.push_async_callback(server.stop, grace_s=0.0)

    def insert(self, count: int, *, version: PolicyVersion) -> None:
        """The next segments of the stream."""
        messages = [
            segment_message(
                self.num_inserted + index, stream=self.stream, version=version, started_at_s=time.time()
            )
            for index in range(count)
        ]
        self.num_inserted += count
        assert self.store.ingest(messages, now_s=time.time()).refused == []
        self.store.arrived.notify()

    def newest_checkpoint(self) -> int:
        """The step of the newest durable checkpoint; -1 before the first."""
        folder = self.folder / "learner" / "checkpoints"
        steps = [version.step for version in checkpoints_in(folder).values()] if folder.is_dir() else []
        return max(steps, default=-1)

    def num_sampled(self) -> int:
        """The units of the committed updates."""
        found = reading.totals(self.store.ledger_path).replay
        assert found is not None
        return found.sampled

    def totals(self) -> tuple[ReplayTotals, list[str]]:
        """The store's totals, and the problems that an audit finds with the learner's."""
        learner = sampled_units(self.folder / "learner" / "checkpoints")
        assert learner is not None
        found = reading.totals(self.store.ledger_path, at=learner.version).replay
        assert found is not None
        assert found.sampled_at is not None
        return found, replay_problems(found, learner)


@asynccontextmanager
async def replay_world(
    folder: Path, bus: Bus, topology: Topology, **replay: Any
) -> AsyncGenerator[ReplayWorld, None]:
    settings = make_settings(folder, broker_url="", max_lag=1_000_000)
    workload = msgspec.structs.replace(settings.workload, num_envs=N, unroll_length=T)
    settings = msgspec.structs.replace(settings, workload=workload, batch_size=BATCH)
    async with AsyncExitStack() as stack:
        weights = await stack.enter_async_context(AsyncExitStack())
        world = World(folder, settings, FakeStore(batch_size=1), bus, topology, weights)
        await world.serve_weights(folder)
        running = ReplayWorld(world, replay_config(**replay))
        stack.push_async_callback(running.server.aclose)
        await running.start_store()
        yield running


async def test_units_are_trained_again_and_again_and_both_sides_count_them(
    tmp_path: Path, bus: Bus, topology: Topology, trainers: CountingTrainers
) -> None:
    async with replay_world(tmp_path, bus, topology, selector="prioritised", uses_max=0) as running:
        async with running.world.learner() as life:
            running.insert(3, version=await life.version(0))
            await life.version(20)
            drawn = (await life.client.progress()).drawn
        totals, problems = running.totals()
        assert problems == []
        assert totals.sampled == trainers.total >= 20 * BATCH
        assert drawn.sampled == drawn.version.step * BATCH
        ledger = reading.totals(running.store.ledger_path)
        assert (ledger.trained, ledger.available, ledger.leased) == (3, 0, 0)
        assert trainers.drawn[0].tensors["observations"].shape == (BATCH, 1)
        assert running.store.replay is not None
        assert running.store.replay.limiter.sampled == totals.sampled


async def test_learner_waits_for_units_at_their_limit_and_says_so(
    tmp_path: Path, bus: Bus, topology: Topology, trainers: CountingTrainers
) -> None:
    async with replay_world(tmp_path, bus, topology, uses_max=2) as running, running.world.learner() as life:
        version = await life.version(0)
        running.insert(2, version=version)
        assert running.store.replay is not None
        limiter = running.store.replay.limiter
        await until(lambda: limiter.waiting == "learner")
        assert "the learner waits for actors" in limiter.sentence()
        before = trainers.total
        assert before <= 2 * 2 * UNITS
        running.insert(1, version=version)
        await until(lambda: trainers.total > before)


async def test_killed_learner_counts_from_its_checkpoint_and_the_store_forgets_the_dead_updates(
    tmp_path: Path, bus: Bus, topology: Topology, trainers: CountingTrainers
) -> None:
    config = msgspec.structs.replace(CONFIG, checkpoint_every_steps=4)
    is_killed = threading.Event()

    def wait_for_the_kill(_units: ReplayUnits) -> None:
        if trainers.total == 11 * BATCH:
            is_killed.wait(TIMEOUT_S)

    trainers.check = wait_for_the_kill
    async with replay_world(tmp_path, bus, topology, uses_max=0) as running:
        async with running.world.learner(config, killed=True) as life:
            running.insert(3, version=await life.version(0))
            await life.version(11)
            await until(lambda: running.newest_checkpoint() == 8 and running.num_sampled() == 11 * BATCH)
        is_killed.set()
        first, problems = running.totals()
        assert problems == []
        assert first.sampled == 11 * BATCH
        async with running.world.learner(config) as life:
            version = await life.version(0)
            assert running.store.ledger.tree.lineages[version.lineage].fork_step == 8
            running.insert(1, version=version)
            await life.version(version.step + 3)
        second, problems = running.totals()
        assert problems == []
        # The trainer's parameters counted on from the checkpoint's.
        assert second.sampled == second.recounted == trainers.total


async def test_rolled_back_learner_counts_from_its_checkpoint_and_the_store_forgets_the_abandoned_updates(
    tmp_path: Path, bus: Bus, topology: Topology, trainers: CountingTrainers
) -> None:
    config = msgspec.structs.replace(CONFIG, checkpoint_every_steps=4, keep_checkpoints=100)
    async with replay_world(tmp_path, bus, topology, uses_max=0) as running:
        async with running.world.learner(config) as life:
            version = await life.version(0)
            running.insert(3, version=version)
            await life.version(11)
            await until(lambda: running.newest_checkpoint() >= 8)
            opened = running.store.ledger.tree.lineages
            found = await life.client.rollback(msgspec.structs.replace(version, step=4))
            assert found.head.step >= 11
            await until(lambda: len(running.store.ledger.tree.lineages) > len(opened))
            forked = list(running.store.ledger.tree.lineages.values())[-1]
            assert (forked.parent, forked.fork_step) == (version.lineage, 4)
            await until(lambda: running.store.ledger.head is not None and running.store.ledger.head.step >= 7)
        totals, problems = running.totals()
        assert problems == []
        # The trainer's parameters counted on from the checkpoint's.
        assert totals.sampled == totals.recounted == trainers.total
        ledger = reading.totals(running.store.ledger_path)
        assert (ledger.trained, ledger.available, ledger.leased) == (3, 0, 0)


async def test_batches_whose_commit_was_lost_are_counted_at_the_restore(
    tmp_path: Path, bus: Bus, topology: Topology, trainers: CountingTrainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(self: Any, request: Any, context: Any) -> Any:
        await asyncio.sleep(3600.0)

    config = msgspec.structs.replace(CONFIG, checkpoint_every_steps=1)
    async with replay_world(tmp_path, bus, topology, uses_max=0) as running:
        with monkeypatch.context() as patched:
            patched.setattr(TrajectoryStoreServicer, "CommitBatch", hang)
            await running.start_store()
            async with running.world.learner(config, killed=True) as life:
                running.insert(3, version=await life.version(0))
                await life.version(1)
                await until(lambda: running.newest_checkpoint() >= 1)
            totals, problems = running.totals()
            assert problems == []
            assert totals.sampled == 0
        await running.start_store()
        async with running.world.learner(config) as life:
            version = await life.version(0)
            assert version.step >= 1
            await life.version(version.step + 1)
        totals, problems = running.totals()
        assert problems == []
        assert totals.sampled == trainers.total


async def test_killed_store_keeps_uses_and_priorities(
    tmp_path: Path, bus: Bus, topology: Topology, trainers: CountingTrainers
) -> None:
    async with replay_world(tmp_path, bus, topology, selector="prioritised", uses_max=0) as running:
        async with running.world.learner() as life:
            running.insert(3, version=await life.version(0))
            version = await life.version(5)
            await running.start_store()
            await life.version(version.step + 5)
        totals, problems = running.totals()
        assert problems == []
        assert totals.sampled == trainers.total


async def test_planted_extra_use_and_lost_blob_are_found(
    tmp_path: Path, bus: Bus, topology: Topology, trainers: CountingTrainers
) -> None:
    async with replay_world(tmp_path, bus, topology, uses_max=0) as running:
        async with running.world.learner(
            msgspec.structs.replace(CONFIG, checkpoint_every_steps=1000)
        ) as life:
            running.insert(3, version=await life.version(0))
            await life.version(5)
        db = running.store.ledger.connection
        number = db.execute("SELECT min(number) FROM batches WHERE num_samples > 0").fetchone()[0]
        db.execute("UPDATE batches SET num_samples = num_samples + 1 WHERE number = ?", (number,))
        _, problems = running.totals()
        assert any("uses are counted by unit" in problem for problem in problems)
        assert any("the learner drew" in problem for problem in problems)
        db.execute("UPDATE batches SET num_samples = num_samples - 1 WHERE number = ?", (number,))
        assert running.totals()[1] == []
        db.execute("UPDATE batches SET units = NULL, folded = 0 WHERE number = ?", (number,))
        _, problems = running.totals()
        assert any("without the units" in problem for problem in problems)


async def test_priorities_that_are_no_numbers_are_refused_and_counted(
    tmp_path: Path, bus: Bus, topology: Topology, trainers: CountingTrainers
) -> None:
    trainers.priority = math.nan
    async with replay_world(tmp_path, bus, topology, selector="prioritised", uses_max=0) as running:
        async with running.world.learner() as life:
            running.insert(3, version=await life.version(0))
            await life.version(3)
        totals, problems = running.totals()
        assert problems == []
        assert totals.priorities_refused == trainers.total


async def test_segment_whose_units_do_not_fit_is_dropped_and_training_continues(
    tmp_path: Path, bus: Bus, topology: Topology, trainers: CountingTrainers
) -> None:
    def check(units: ReplayUnits) -> None:
        if (units.tensors["actions"] < T).any():
            raise RecordError("the first segment is no good")

    trainers.check = check
    async with replay_world(tmp_path, bus, topology, uses_max=0) as running:
        async with running.world.learner() as life:
            running.insert(3, version=await life.version(0))
            await life.version(3)
            board = life.context.stats.snapshot(at_s=0.0)
        assert board.values[learner_stats.INVALID_BATCHES] >= 1
        assert "the first segment is no good" in board.labels[learner_stats.BATCH_REFUSAL]
        ledger = reading.totals(running.store.ledger_path)
        assert ledger.dropped == {"invalid": 1}
        assert ledger.trained == 2
        assert running.totals()[1] == []
