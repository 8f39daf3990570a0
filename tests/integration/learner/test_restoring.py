import asyncio
import errno
import threading
from pathlib import Path

import msgspec
import pytest

from tests.integration.learner.world import CONFIG, TIMEOUT_S, World, until, world
from tidegate.catalogue import learner as statistics
from tidegate.core.errors import (
    BackpressureError,
    CorruptionError,
    StaleFolderError,
    TidegateError,
    UnauthenticatedError,
    UnavailableError,
)
from tidegate.core.ids import PolicyVersion
from tidegate.learner import checkpoint as checkpoint_module
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import PolicyConfig
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration


def head(running: World, step: int) -> PolicyVersion:
    return PolicyVersion(lineage=running.store.head_lineage.name, step=step)


def checkpoints(running: World) -> list[Path]:
    return sorted((Path(running.settings.data_dir) / "learner" / "checkpoints").glob("0*"))


async def train_to(running: World, step: int, *, killed: bool = False, every: int = 100) -> None:
    config = msgspec.structs.replace(CONFIG, checkpoint_every_steps=every)
    async with running.learner(config, killed=killed) as life:
        version = await life.version(0)
        running.offer(step - version.step, at=version)
        await life.acknowledged(step)
        # Checkpoints are written beside the next step: a kill before the last due one is durable loses more.
        due = version.step + (step - version.step) // every * every
        if due > version.step:
            await until(lambda: any(path.name.endswith(f".{due}") for path in checkpoints(running)))


async def test_draining_leaves_a_checkpoint_from_which_the_next_process_forks(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=5) as running:
        await train_to(running, 3)
        last = await running.announced()
        assert [path.name.rpartition(".")[2] for path in checkpoints(running)] == ["0", "3"]
        assert running.store.checkpointed[-1].step == 0, (
            "payloads stay until the oldest kept one includes them"
        )
        async with running.learner() as life:
            version = await life.version(0)
            assert version.step == 3
            assert version.lineage.startswith("1-")
            root, fork = running.store.opened
            assert (fork.name, fork.parent, fork.fork_step) == (version.lineage, root.name, 3)
            assert running.store.consumed == []
            announced = await running.announced()
            assert announced.version == version
            assert announced.digests() == last.digests()
            progress = await life.client.progress()
            assert progress.consumed_trajectories == 6
            assert progress.checkpointed == last.version
            running.offer(1, at=version)
            await life.version(4)
            assert (await life.client.progress()).metrics["mean_return"] == sum(range(1, 9)) / 8


async def test_killed_learner_resumes_from_its_last_checkpoint_and_reports_the_loss(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        await train_to(running, 5, killed=True, every=2)
        async with running.learner() as life:
            assert (await life.version(0)).step == 4
        fork = running.store.head_lineage
        # The update made on top of step 4 is lost; those made at steps 0 to 3 are part of the fork.
        assert fork.fork_step == 4


async def test_killed_learner_makes_the_committed_updates_after_its_checkpoint_again(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        await train_to(running, 5, killed=True, every=3)
        last = await running.announced()
        assert last.version.step == 5
        async with running.learner() as life:
            version = await life.version(0)
            assert version.step == 5, "the checkpoint is of step 3"
            assert running.store.head_lineage.fork_step == 5
            assert (await running.announced()).digests() == last.digests(), "the same policy, to the last bit"
            progress = await life.client.progress()
            assert progress.consumed_trajectories == 10
            assert progress.checkpointed is not None
            assert progress.checkpointed.step == 3
            running.offer(1, at=version)
            await life.version(6)
            assert (await life.client.progress()).metrics["mean_return"] == sum(range(1, 13)) / 12
        assert len(running.store.commits) == 6


async def test_learner_killed_before_its_first_due_checkpoint_makes_all_its_updates_again(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        await train_to(running, 3, killed=True)
        last = await running.announced()
        assert last.version.step == 3
        async with running.learner() as life:
            version = await life.version(0)
            assert version.step == 3
            assert running.store.head_lineage.fork_step == 3
            assert (await running.announced()).digests() == last.digests(), "the same policy, to the last bit"
            running.offer(1, at=version)
            await life.version(4)
        assert len(running.store.commits) == 4


async def test_updates_are_recomputed_through_the_forks_of_earlier_restores(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        await train_to(running, 4, killed=True, every=3)
        # The next one dies before it has written a checkpoint of its own.
        async with running.learner(killed=True) as life:
            version = await life.version(4)
            running.offer(2, at=version)
            await life.acknowledged(6)
        last = await running.announced()
        async with running.learner() as life:
            assert (await life.version(0)).step == 6
            assert (await running.announced()).digests() == last.digests()


async def test_learner_restores_where_the_store_refuses_to_send_past_updates(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        await train_to(running, 5, killed=True, every=3)
        running.store.refused.add("ReadUpdate")
        async with running.learner() as life:
            assert (await life.version(0)).step == 3, "training continues from the checkpoint"
            assert running.store.calls["ReadUpdate"] >= 1


async def test_learner_stopped_while_it_recomputes_gives_no_update_up(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.keeps_payloads = True
        await train_to(running, 5, killed=True, every=3)
        running.store.failures.update(ReadUpdate=10_000)
        async with running.learner():
            await until(lambda: running.store.calls["ReadUpdate"] >= 1)
        running.store.failures.clear()
        assert len(running.store.opened) == 1, "a lineage from the checkpoint would abandon two updates"
        async with running.learner() as life:
            assert (await life.version(0)).step == 5
            assert running.store.head_lineage.fork_step == 5


async def test_draining_writes_the_checkpoint_that_a_full_disk_refused(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoint_module.CheckpointFolder.write

    def refused_at_two(
        folder: checkpoint_module.CheckpointFolder,
        checkpoint: checkpoint_module.Checkpoint,
        *,
        early: bool = False,
    ) -> Path:
        if checkpoint.progress.version.step == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(folder, checkpoint, early=early)

    async with world(tmp_path, bus, topology, max_lag=9) as running:
        config = msgspec.structs.replace(CONFIG, checkpoint_every_steps=2)
        monkeypatch.setattr(checkpoint_module.CheckpointFolder, "write", refused_at_two)
        async with running.learner(config) as life:
            running.offer(2, at=await life.version(0))
            await life.acknowledged(2)
            await until(lambda: life.context.stats.value(statistics.CHECKPOINT_FAILURES) == 1)
            monkeypatch.setattr(checkpoint_module.CheckpointFolder, "write", write)
        assert [path.name.rpartition(".")[2] for path in checkpoints(running)] == ["0", "2"]


async def test_unacknowledged_batches_are_committed_at_the_restore(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        config = msgspec.structs.replace(CONFIG, checkpoint_every_steps=1)
        async with running.learner(config, killed=True) as life:
            version = await life.version(0)
            running.store.failures.update(CommitBatch=10_000)
            running.offer(1, at=version)
            await life.version(1)
            await until(lambda: any(path.name.endswith(".1") for path in checkpoints(running)))
        running.store.failures.clear()
        assert running.store.commits == []
        async with running.learner() as life:
            assert (await life.version(0)).step == 1
        assert [consumed for _, consumed in running.store.consumed] == [version]


@pytest.mark.parametrize("failure", [UnavailableError, BackpressureError, UnauthenticatedError])
async def test_draining_while_the_store_takes_no_commit_still_leaves_a_checkpoint(
    tmp_path: Path, bus: Bus, topology: Topology, failure: type[TidegateError]
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        running.store.failure = failure
        async with running.learner() as life:
            version = await life.version(0)
            running.store.failures.update(CommitBatch=10_000, MarkCheckpointed=10_000)
            running.offer(2, at=version)
            await life.version(1)
        running.store.failures.clear()
        assert len(checkpoints(running)) == 2
        async with running.learner() as life:
            restored = await life.version(0)
        assert restored.step >= 1
        assert [consumed.step for _, consumed in running.store.consumed] == list(range(restored.step))


async def test_batches_leased_ahead_are_released_on_drain(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        async with running.learner() as life:
            version = await life.version(0)
            running.offer(6, at=version)
            await life.version(1)
            life.context.drain.request()
        assert running.store.leases == {}
        num_committed = 2 * len(running.store.commits)
        assert num_committed + len(running.store.available) == 12


async def test_corrupt_newest_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    events: list[bytes] = []

    async def note(data: bytes, _headers: dict[str, str]) -> None:
        events.append(data)

    await bus.subscribe(topology.event("checkpoint_corrupt"), note)
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        await train_to(running, 4, every=2)
        older, newer = checkpoints(running)
        assert running.store.checkpointed[-1].step == 2  # the store keeps payloads that the older one needs
        (newer / "policy.safetensors").write_bytes(b"torn")
        async with running.learner() as life:
            assert (await life.version(0)).step == 2
            await until(lambda: len(events) == 1)
        assert b"policy.safetensors" in events[0]
        assert older.name.encode() in events[0]


async def test_only_corrupt_checkpoints_end_the_learner_with_what_to_do(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=9) as running:
        await train_to(running, 1)
        for path in checkpoints(running):
            (path / "state.json").write_bytes(b"{}")
        with pytest.raises(CorruptionError, match="from a copy or a backup"):
            async with running.learner() as life:
                await asyncio.wait([life.loop])


async def test_checkpoint_of_another_network_ends_the_learner_with_what_to_do(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running:
        await train_to(running, 1)
        running.settings = msgspec.structs.replace(
            running.settings, policy=PolicyConfig(kind="mlp", hidden=(5,))
        )
        with pytest.raises(StaleFolderError, match="restore the run file's policy section"):
            async with running.learner() as life:
                await asyncio.wait([life.loop])


async def test_checkpoint_on_request_while_no_batch_comes(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        version = await life.version(0)
        await until(lambda: len(checkpoints(running)) == 1)
        assert await life.client.checkpoint() == version
        assert (await life.client.progress()).checkpointed == version
        assert len(checkpoints(running)) == 2


async def test_learner_of_a_complete_run_drains_for_good_and_keeps_a_checkpoint(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        await life.version(0)
        running.offer(1, at=await life.version(0))
        await life.version(1)
        await life.client.complete(reason="the run is complete: version_step>=1 holds")
        await life.client.complete(reason="asked twice")
        await asyncio.wait_for(asyncio.shield(life.loop), timeout=60)
        assert life.context.drain.completed
        assert len(checkpoints(running)) == 2


async def test_full_disk_is_reported_and_does_not_end_the_training(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    async with world(tmp_path, bus, topology) as running:
        config = msgspec.structs.replace(CONFIG, checkpoint_every_steps=1)
        async with running.learner(config) as life:
            version = await life.version(0)
            await until(lambda: len(checkpoints(running)) == 1)
            with monkeypatch.context() as patch:
                patch.setattr(checkpoint_module, "_write_synced", refuse)
                running.offer(2, at=version)
                await life.version(2)
                # One is due after each update: the alert on old checkpoints reads this.
                assert life.context.stats.snapshot(at_s=0.0).values["checkpoint_behind"] == 2
                with pytest.raises(UnavailableError, match="No space"):
                    await life.client.checkpoint()
            assert len(checkpoints(running)) == 1
            assert (await life.client.checkpoint()).step == 2
        assert len(checkpoints(running)) == 2


async def test_learner_whose_first_checkpoint_finds_no_space_trains_and_says_so(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(checkpoint_module, "_write_synced", refuse)
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        version = await life.version(0)
        running.offer(1, at=version)
        await life.version(1)
        await until(lambda: len(running.store.commits) == 1)
        assert checkpoints(running) == []
        assert life.context.stats.snapshot(at_s=0.0).values["checkpoint_failures_total"] >= 1


async def test_no_update_is_committed_before_the_first_checkpoint_is_durable(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    write = checkpoint_module.CheckpointFolder.write

    def blocked(
        folder: checkpoint_module.CheckpointFolder,
        checkpoint: checkpoint_module.Checkpoint,
        *,
        early: bool = False,
    ) -> Path:
        release.wait(TIMEOUT_S)
        return write(folder, checkpoint, early=early)

    monkeypatch.setattr(checkpoint_module.CheckpointFolder, "write", blocked)
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        version = await life.version(0)
        running.offer(1, at=version)
        await life.version(1)
        assert running.store.commits == []
        assert checkpoints(running) == []
        release.set()
        await until(lambda: len(running.store.commits) == 1)
        assert len(checkpoints(running)) == 1
