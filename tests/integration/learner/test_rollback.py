"""Rollbacks of a learner with real weight distribution and a real broker: where it goes on from, and after kills."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.learner.world import CONFIG, Life, World, until, world
from tidegate.core.errors import CorruptionError, NotFoundError, PermissionDeniedError, RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.learner.checkpoint import CheckpointFolder
from tidegate.learner.committing import StepCommitter
from tidegate.learner.rollback import ROLLBACK_FILE, RollbackFile
from tidegate.runtime.bus import Bus
from tidegate.wire.announcement import Announcement
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

# A checkpoint at the steps 0, 2, 4 and so on.
EVERY_OTHER = msgspec.structs.replace(CONFIG, checkpoint_every_steps=2, keep_checkpoints=4)


class KilledError(Exception):
    """Ends a learner at the point where it is raised: nothing after it is done."""


def checkpoints(running: World) -> list[int]:
    """The steps of the kept checkpoints, oldest first."""
    folder = Path(running.settings.data_dir) / "learner" / "checkpoints"
    return [int(path.name.rpartition(".")[2]) for path in sorted(folder.glob("0*"))]


def marker(running: World) -> Path:
    return Path(running.settings.data_dir) / "learner" / ROLLBACK_FILE


async def train_to(running: World, life: Life, step: int) -> PolicyVersion:
    """Train, and wait until all of it is durable; returns the newest version."""
    before = await life.version(0)
    running.offer(step - before.step, at=before)
    await life.acknowledged(step)
    due = step // 2 * 2
    await until(lambda: due in checkpoints(running) or due == before.step)
    return await life.version(step)


async def on_another_branch(life: Life, lineage: str) -> PolicyVersion:
    """The first version of the lineage that a rollback opens."""
    async with asyncio.timeout(60.0):
        while True:
            version = (await life.client.progress()).version
            if version.lineage != lineage:
                return version
            await asyncio.sleep(0.01)


async def test_learner_goes_back_to_a_kept_checkpoint_and_trains_on_from_it(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    events: list[dict[str, Any]] = []

    async def note(data: bytes, _headers: dict[str, str]) -> None:
        events.append(msgspec.json.decode(data))

    await bus.subscribe(topology.event("rolled_back"), note)
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        async with running.learner(EVERY_OTHER) as life:
            at_two = await train_to(running, life, 2)
            announced = await running.announced()
            head = await train_to(running, life, 5)
            assert (await life.client.progress()).kept == [
                msgspec.structs.replace(head, step=step) for step in (0, 2, 4)
            ]
            accepted = await life.client.rollback(at_two, reason="collapsed", by="ana")
            assert (accepted.head, accepted.target) == (head, at_two)
            version = await on_another_branch(life, head.lineage)
            assert version.step == 2
            opened = running.store.head_lineage
            assert (opened.parent, opened.fork_step) == (head.lineage, 2)
            await until(lambda: bool(events))
            again = await running.announced()
            assert again.version == version
            assert again.digests() == announced.digests(), "the policy of that checkpoint"
            progress = await life.client.progress()
            assert progress.consumed_trajectories == 4
            assert progress.kept == [msgspec.structs.replace(head, step=0), at_two]
            assert progress.checkpointed == at_two
            assert not marker(running).exists()
            assert running.store.calls["ReadUpdate"] == 0, "no update was made again"
            assert {name: events[0][name] for name in ("head", "target", "version", "reason", "by")} == {
                "head": str(head),
                "target": str(at_two),
                "version": str(version),
                "reason": "collapsed",
                "by": "ana",
            }
            board = life.context.stats.snapshot(at_s=0.0)
            assert board.labels["published_version"] == str(version)
            assert board.labels["checkpointed"] == str(at_two)
            await train_to(running, life, 4)
            assert checkpoints(running) == [0, 2, 4]
        assert running.store.leases == {}


async def test_measurements_of_the_abandoned_branch_are_not_reported_of_the_version_that_is_restored(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running, running.learner(EVERY_OTHER) as life:
        first = await life.version(0)
        head = await train_to(running, life, 2)
        assert "mean_return" in life.context.stats.snapshot(at_s=0.0).values
        await life.client.rollback(first)
        assert (await on_another_branch(life, head.lineage)).step == 0
        assert "mean_return" not in life.context.stats.snapshot(at_s=0.0).values
        assert (await life.client.progress()).metrics == {}


def open_lineage_is_killed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrajectoryStoreClient, "open_lineage", _killed)


def publish_is_killed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepCommitter, "publish", _killed)


def deletion_is_killed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointFolder, "delete_after", _killed_at_once)


def end_is_killed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RollbackFile, "remove", _killed_at_once)


async def _killed(*_arguments: Any, **_options: Any) -> None:
    raise KilledError


def _killed_at_once(*_arguments: Any) -> None:
    raise KilledError


async def be_killed_in_a_rollback(
    running: World, kill: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> tuple[PolicyVersion, Announcement]:
    """Train to step 5 and go back to step 2; returns the newest version, and what was announced at step 2."""
    found: list[tuple[PolicyVersion, Announcement]] = []
    with monkeypatch.context() as patch, contextlib.suppress(KilledError):
        async with running.learner(EVERY_OTHER) as life:
            at_two = await train_to(running, life, 2)
            announced = await running.announced()
            found.append((await train_to(running, life, 5), announced))
            kill(patch)
            assert (await life.client.rollback(at_two)).target == at_two
            await asyncio.wait([life.loop])
        raise AssertionError("the learner was not killed")
    return found[0]


@pytest.mark.parametrize(
    "kill", [open_lineage_is_killed, publish_is_killed, deletion_is_killed, end_is_killed]
)
async def test_learner_that_is_killed_in_a_rollback_finishes_it_at_its_next_start(
    tmp_path: Path,
    bus: Bus,
    topology: Topology,
    monkeypatch: pytest.MonkeyPatch,
    kill: Callable[[pytest.MonkeyPatch], None],
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        head, announced = await be_killed_in_a_rollback(running, kill, monkeypatch)
        assert marker(running).exists()
        async with running.learner(EVERY_OTHER) as life:
            version = await life.version(0)
            assert version.step == 2
            assert version.lineage != head.lineage
            assert (running.store.head_lineage.parent, running.store.head_lineage.fork_step) == (
                head.lineage,
                2,
            )
            assert (await running.announced()).digests() == announced.digests()
            assert checkpoints(running) == [0, 2]
            assert not marker(running).exists()
            await train_to(running, life, 3)


async def test_learner_that_is_killed_after_a_rollback_recomputes_what_it_trained_since(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        async with running.learner(EVERY_OTHER, killed=True) as life:
            at_two = await train_to(running, life, 2)
            head = await train_to(running, life, 5)
            await life.client.rollback(at_two)
            await on_another_branch(life, head.lineage)
            last = await train_to(running, life, 3)
            announced = await running.announced()
        async with running.learner(EVERY_OTHER) as life:
            assert (await life.version(0)).step == 3
            assert running.store.head_lineage.parent == last.lineage, "the abandoned branch stays abandoned"
            assert (await running.announced()).digests() == announced.digests()


async def test_learner_that_is_stopped_at_once_finishes_the_rollback_at_its_next_start(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = msgspec.structs.replace(EVERY_OTHER, keep_checkpoints=2)
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        async with running.learner(config) as life:
            at_two = await train_to(running, life, 2)
            head = await train_to(running, life, 5)
            assert checkpoints(running) == [2, 4]
            write = RollbackFile.write

            def and_drain(file: RollbackFile, rollback: Any) -> None:
                write(file, rollback)
                life.context.drain.request()

            monkeypatch.setattr(RollbackFile, "write", and_drain)
            await life.client.rollback(at_two)
        assert 2 in checkpoints(running), "a last checkpoint of the abandoned branch would have deleted it"
        async with running.learner(config) as life:
            version = await life.version(0)
            assert version.step == 2
            assert version.lineage != head.lineage


async def test_refused_rollback_costs_nothing(tmp_path: Path, bus: Bus, topology: Topology) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running, running.learner(EVERY_OTHER) as life:
        head = await train_to(running, life, 3)
        with pytest.raises(NotFoundError, match=r"they hold.*@0, .*@2"):
            await life.client.rollback(msgspec.structs.replace(head, step=1))
        with pytest.raises(RecordError, match="The version to go back to"):
            await life.client.rollback(PolicyVersion(head.lineage, -1))
        folder = Path(running.settings.data_dir) / "learner" / "checkpoints"
        newest = sorted(folder.glob("0*"))[-1]
        (newest / "policy.safetensors").write_bytes(b"torn")
        with pytest.raises(CorruptionError, match=r"policy\.safetensors"):
            await life.client.rollback(msgspec.structs.replace(head, step=2))
        assert not marker(running).exists()
        assert (await train_to(running, life, 5)).lineage == head.lineage


async def test_learner_whose_rollback_cannot_be_read_goes_on_from_where_it_was(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        await be_killed_in_a_rollback(running, open_lineage_is_killed, monkeypatch)
        marker(running).write_bytes(b"{")
        async with running.learner(EVERY_OTHER) as life:
            assert (await life.version(0)).step == 5
            assert not marker(running).exists()


async def test_rollback_that_the_store_refuses_is_given_up(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        await be_killed_in_a_rollback(running, open_lineage_is_killed, monkeypatch)
        running.store.refused.add("OpenLineage")
        with pytest.raises(PermissionDeniedError):
            async with running.learner(EVERY_OTHER) as life:
                await asyncio.wait([life.loop])
        assert not marker(running).exists()
        running.store.refused.clear()
        async with running.learner(EVERY_OTHER) as life:
            assert (await life.version(0)).step == 5, "the next start does not fail in the same way"


async def test_rollback_whose_checkpoint_is_lost_before_the_restore_is_given_up(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        await be_killed_in_a_rollback(running, open_lineage_is_killed, monkeypatch)
        folder = Path(running.settings.data_dir) / "learner" / "checkpoints"
        (sorted(folder.glob("0*"))[1] / "trainer.safetensors").write_bytes(b"torn")
        async with running.learner(EVERY_OTHER) as life:
            assert (await life.version(0)).step == 5, "training goes on from where it was"
            assert not marker(running).exists()
