"""Two learners of a run: one trains, the other has its checkpoint and takes over; real broker, real gRPC."""

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import pytest
import structlog

from tests.integration.learner import standby_rank
from tests.integration.learner.world import CONFIG, World, until, world
from tests.support.broker import Broker, free_port
from tests.support.call_credentials import accepted
from tests.support.environments import describing
from tests.support.service_harness import HarnessChannels
from tidegate.core.ids import PolicyVersion
from tidegate.learner import checkpoint_copy
from tidegate.learner.checkpoint import checkpoints_in
from tidegate.learner.main import SPEC
from tidegate.learner.ranks.membership import STORE_VARIABLE
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle import ProcessPorts, ServiceLifecycle
from tidegate.runtime.process import open_bus
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry import Telemetry
from tidegate.trajectory_store import learner_turn
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

EVERY_STEP = msgspec.structs.replace(CONFIG, checkpoint_every_steps=1)


@dataclass
class Instance:
    """One process of the learner, in a task."""

    address: str
    folder: Path
    drain: Drain
    board: list[StatsBoard]
    run: "asyncio.Task[int]"

    @property
    def state(self) -> str:
        return self.board[0].state if self.board else "starting"

    def checkpoints(self) -> list[PolicyVersion]:
        folder = self.folder / "learner" / "checkpoints"
        return list(checkpoints_in(folder).values()) if folder.is_dir() else []


@dataclass
class Pair:
    """Two of them, in a world that has one store."""

    world: World
    listen: dict[str, str]
    started: list[Instance] = field(default_factory=list["Instance"])

    def settings(self, name: str) -> Settings:
        """Of one of them."""
        return msgspec.structs.replace(
            self.world.settings,
            data_dir=str(self.world.folder / name),
            listen=self.listen[name],
            addresses={
                **self.world.settings.addresses,
                "learner": [f"ipv4:{','.join(self.listen.values())}"],
            },
        )

    async def train(self, instance: Instance, num_batches: int) -> None:
        """Commit as many updates, and wait until their checkpoint is on its disk."""
        head = self.world.store.head_lineage
        step = max([head.fork_step, *(commit.version.step + 1 for commit in self.world.store.commits)])
        self.world.offer(num_batches, at=PolicyVersion(head.name, step))
        await until(lambda: self.world.store.commits[-1:] != [] and self.trained() == step + num_batches)
        await until(lambda: instance.checkpoints()[-1].step == step + num_batches)

    def trained(self) -> int:
        return self.world.store.commits[-1].version.step + 1

    def start(self, name: str) -> Instance:
        """Begin a process of one of them."""
        settings, board = self.settings(name), list[StatsBoard]()
        drain, clock = Drain(), SystemClock()

        def telemetry(stats: StatsBoard) -> Telemetry:
            board.append(stats)
            return Telemetry(settings.telemetry, exporter=None)

        ports = ProcessPorts(
            clock=clock,
            drain=drain,
            log=structlog.get_logger(name),
            channels=HarnessChannels(settings, "learner"),
            open_telemetry=telemetry,
            open_bus=partial(open_bus, settings, name, clock),
            open_server=lambda registrations, meter: RpcServer(registrations, accepted(), meter=meter),
            record_usage=lambda _stats: None,
            on_built=lambda: None,
        )
        lifecycle = ServiceLifecycle(SPEC, EVERY_STEP, settings, index=0, ports=ports)
        running = asyncio.create_task(lifecycle.run())
        made = Instance(self.listen[name], Path(settings.data_dir), drain, board, running)
        self.started.append(made)
        return made


@asynccontextmanager
async def pair(folder: Path, nats: Broker, bus: Bus, topology: Topology) -> AsyncGenerator[Pair]:
    listen = {name: f"127.0.0.1:{free_port()}" for name in ("first", "second")}
    async with world(folder, bus, topology, max_lag=20, broker_url=nats.url) as running:
        running.store.keeps_payloads = True
        made = Pair(running, listen)
        async with describing(running.settings.addresses["environment"][0]):
            try:
                yield made
            finally:
                for instance in made.started:
                    instance.drain.request()
                await asyncio.gather(*(instance.run for instance in made.started))


async def both(running: Pair) -> tuple[Instance, Instance]:
    """One that trained, and one that stands by with its newest checkpoint."""
    first = running.start("first")
    await until(lambda: first.state == "ready")
    await until(lambda: bool(running.world.store.opened))
    await running.train(first, 2)
    second = running.start("second")
    await until(lambda: second.state == "standby")
    await until(lambda: second.checkpoints() == first.checkpoints()[-1:])
    return first, second


async def test_learner_that_drains_is_followed_by_the_one_that_stands_by(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, nats, bus, topology) as running:
        first, second = await both(running)
        monkeypatch.setattr(learner_turn, "SILENT_S", 3600.0)
        first.drain.request()
        assert await first.run == 0
        await until(lambda: len(running.world.store.opened) == 2)
        root, fork = running.world.store.opened
        assert (fork.parent, fork.fork_step) == (root.name, 2), "nothing is trained again"
        await running.train(second, 1)


async def test_copy_follows_the_newest_checkpoint_and_no_update_is_lost(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The updates after the copy are recomputed from the store."""
    async with pair(tmp_path, nats, bus, topology) as running:
        first, second = await both(running)
        await running.train(first, 2)
        await until(lambda: [version.step for version in second.checkpoints()] == [4])

        async def refuse(_copy: object) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(checkpoint_copy.CheckpointCopy, "refresh", refuse)
        await running.train(first, 3)
        assert [version.step for version in second.checkpoints()] == [4]
        running.world.turns.unheard = {first.address}
        await until(lambda: len(running.world.store.opened) == 2)
        root, fork = running.world.store.opened
        assert (fork.parent, fork.fork_step) == (root.name, 7)
        assert running.world.store.calls["ReadUpdate"] >= 3


async def test_learner_that_was_replaced_ends_and_commits_nothing_more(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology
) -> None:
    async with pair(tmp_path, nats, bus, topology) as running:
        first, second = await both(running)
        running.world.turns.unheard = {first.address}  # the store hears nothing of it
        await until(lambda: len(running.world.store.opened) == 2)
        root, fork = running.world.store.opened
        running.world.turns.unheard = set()
        assert await first.run == 1
        await running.train(second, 1)
        assert {commit.version.lineage for commit in running.world.store.commits[2:]} == {fork.name}
        again = running.start("first")
        await until(lambda: again.state == "standby")
        await until(lambda: again.checkpoints() == second.checkpoints()[-1:])
        assert all(version.lineage != root.name for version in again.checkpoints())


async def test_learner_whose_checkpoint_is_too_old_waits_for_a_newer_one(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology
) -> None:
    async with pair(tmp_path, nats, bus, topology) as running:
        turns = running.world.turns
        first, second = await both(running)
        turns.is_behind = lambda checkpoint: checkpoint is None or checkpoint.step < 3
        turns.unheard = {first.address}
        await until(lambda: turns.num_behind > learner_turn.SILENT_S + 2)
        assert second.state == "standby"
        turns.unheard = set()
        await running.train(first, 1)
        turns.unheard = {first.address}
        await until(lambda: second.state == "ready")


@asynccontextmanager
async def second_of_two_ranks(
    running: Pair, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[Instance, Callable[[], int | None]]]:
    """It stands by when this returns; and how its other rank has ended."""
    group = {
        "WORLD_SIZE": "2",
        STORE_VARIABLE: str(running.world.folder / "ranks"),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    for name, value in {**group, "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    other = multiprocessing.get_context("spawn").Process(
        target=standby_rank.main,
        args=(EVERY_STEP, running.settings("second"), {**group, "RANK": "1", "LOCAL_RANK": "1"}),
    )
    other.start()
    try:
        second = running.start("second")
        await until(lambda: bool(second.checkpoints()))
        assert second.state == "standby"
        yield second, lambda: other.exitcode
    finally:
        other.kill()
        other.join()


async def test_ranks_wait_as_a_group_and_take_over_together(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, nats, bus, topology) as running:
        first = running.start("first")
        await until(lambda: bool(running.world.store.opened))
        await running.train(first, 2)
        async with second_of_two_ranks(running, monkeypatch) as (second, exit_code):
            await until(lambda: second.checkpoints() == first.checkpoints()[-1:])
            first.drain.request()
            assert await first.run == 0
            await until(lambda: len(running.world.store.opened) == 2)
            await running.train(second, 2)
            second.drain.request()
            assert await second.run == 0
            await until(lambda: exit_code() == 0)


async def test_ranks_that_wait_end_when_the_first_of_them_drains(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, nats, bus, topology) as running:
        running.start("first")
        await until(lambda: bool(running.world.store.opened))
        async with second_of_two_ranks(running, monkeypatch) as (second, exit_code):
            second.drain.request()
            assert await second.run == 0
            await until(lambda: exit_code() == 0)


async def test_payloads_stay_for_the_checkpoint_of_the_one_that_stands_by(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast checkpoints follow each other."""
    async with pair(tmp_path, nats, bus, topology) as running:
        first, second = await both(running)

        async def ask_only(copy: checkpoint_copy.CheckpointCopy) -> None:
            with contextlib.closing(copy.client.read_checkpoint(known=copy.newest())) as stream:
                await stream.next_file()

        monkeypatch.setattr(checkpoint_copy.CheckpointCopy, "refresh", ask_only)
        await running.train(first, 6)
        assert [version.step for version in second.checkpoints()] == [2]
        assert first.checkpoints()[0].step > 2
        await until(lambda: running.world.store.checkpointed[-1].step == 2)
