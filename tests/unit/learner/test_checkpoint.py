import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.unit.learner.trajectories import ROOT, version
from tidegate.core.errors import CorruptionError, NotFoundError, StaleFolderError
from tidegate.core.ids import LineageName, PolicyVersion, RunId, TrajectoryId
from tidegate.core.staleness import Fresh, Lineage
from tidegate.learner import checkpoint as checkpoint_module
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder, checkpoints_in, fork, read
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.state import EpisodeWindow, TrainingProgress
from tidegate.wire.clients.trajectory_store import ConsumedBatch, Consumption

RUN = RunId("test-run")
FILES = ["policy.safetensors", "trainer.safetensors", "state.json", "manifest.json"]


def checkpoint(at: PolicyVersion, **changes: Any) -> Checkpoint:
    rng = np.random.default_rng(at.step)
    whole = Checkpoint(
        run=RUN,
        policy_kind="mlp",
        progress=TrainingProgress(
            version=at,
            consumed_trajectories=3,
            consumed_steps=4,
            episodes=EpisodeWindow(returns=(1.5, 2.5), total=9),
        ),
        lineages=(Lineage(name=ROOT), Lineage(name=LineageName("1-bbbb"), parent=ROOT, fork_step=2)),
        consumed=(
            ConsumedBatch(
                batch_id="b-1",
                version=version(at.step - 1),
                consumptions=[Consumption(TrajectoryId("t.0"), Fresh(lag=1, span=0, age_s=0.25))],
            ),
        ),
        policy={"w": rng.standard_normal((2, 3)).astype(np.float32)},
        trainer=TrainerState(
            tensors={"m": rng.standard_normal(4), "generator": np.arange(8, dtype=np.uint8)},
            values={"updates": 12},
        ),
        written_at_s=1.0,
    )
    return msgspec.structs.replace(whole, **changes)


def open_folder(directory: Path, *, keep: int = 3) -> CheckpointFolder:
    return CheckpointFolder(directory, keep=keep)


def test_tensors_come_back_whatever_the_order_of_their_memory(tmp_path: Path) -> None:
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    tensors = {"m": transposed, "step": np.array(7.0, np.float32)}
    written = checkpoint(
        version(1), policy={"w": transposed}, trainer=TrainerState(tensors=tensors, values={})
    )
    found = read(open_folder(tmp_path).write(written))
    assert found.trainer.tensors["step"].shape == (), "an optimiser's count of steps is one number"
    np.testing.assert_array_equal(found.policy["w"], transposed)
    np.testing.assert_array_equal(found.trainer.tensors["m"], transposed)


def newest_version(folder: CheckpointFolder) -> PolicyVersion:
    found = folder.newest(run=RUN, policy_kind="mlp")
    assert found is not None
    return found.checkpoint.progress.version


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    given = checkpoint(version(7))
    path = open_folder(tmp_path).write(given)
    back = read(path)
    for name in ("run", "policy_kind", "progress", "lineages", "consumed", "written_at_s"):
        assert getattr(back, name) == getattr(given, name)
    np.testing.assert_array_equal(back.policy["w"], given.policy["w"])
    np.testing.assert_array_equal(back.trainer.tensors["m"], given.trainer.tensors["m"])
    assert back.trainer.tensors["generator"].dtype == np.uint8
    assert back.trainer.values == {"updates": 12}


def test_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert open_folder(tmp_path).newest(run=RUN, policy_kind="mlp") is None


def test_newest_is_the_last_written_even_at_an_older_step(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    folder.write(checkpoint(version(150)))
    folder.write(checkpoint(version(110, LineageName("1-bbbb"))))
    assert newest_version(open_folder(tmp_path)) == version(110, LineageName("1-bbbb"))


def test_other_names_in_the_folder_are_no_checkpoints_and_stay(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, keep=1)
    path = folder.write(checkpoint(version(1)))
    others = [f"{path.name}.bak", "2026-11-24", "00000002", "1.main.x", "notes.txt"]
    for name in others:
        (tmp_path / name).mkdir()
    assert list(checkpoints_in(tmp_path)) == [path]
    newest = folder.write(checkpoint(version(2)))
    assert {found.name for found in tmp_path.iterdir()} == {newest.name, *others}


def test_only_the_newest_stay(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, keep=2)
    for step in range(8, 13):
        folder.write(checkpoint(version(step)))
    assert folder.versions() == [version(11), version(12)]


def test_early_one_is_replaced_by_the_next_and_takes_the_place_of_one_other(
    tmp_path: Path,
) -> None:
    folder = open_folder(tmp_path, keep=2)
    seen: list[list[int]] = []
    for step, early in ((0, False), (3, True), (6, True), (20, False), (23, True), (40, False)):
        folder.write(checkpoint(version(step)), early=early)
        seen.append([held.step for held in folder.versions()])
    assert seen == [[0], [0, 3], [0, 6], [0, 20], [20, 23], [20, 40]]
    # After a restart it is not known which one was early, and it stays as long as any.
    folder.write(checkpoint(version(43)), early=True)
    folder = open_folder(tmp_path, keep=2)
    folder.write(checkpoint(version(60)))
    assert folder.versions() == [version(43), version(60)]


def test_early_one_that_a_rollback_deleted_does_not_stop_the_next(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, keep=2)
    first = folder.write(checkpoint(version(1)))
    folder.write(checkpoint(version(2)), early=True)
    folder.delete_after(first)
    folder.write(checkpoint(version(3)))
    assert folder.versions() == [version(1), version(3)]


@pytest.mark.parametrize("name", FILES)
def test_any_changed_byte_is_found_and_the_one_before_is_taken(tmp_path: Path, name: str) -> None:
    folder = open_folder(tmp_path)
    folder.write(checkpoint(version(1)))
    spoil(folder.write(checkpoint(version(2))) / name)
    found = open_folder(tmp_path).newest(run=RUN, policy_kind="mlp")
    assert found is not None
    assert found.checkpoint.progress.version == version(1)
    assert "00000002.0-aaaa.2" in found.passed_over[0]
    # A corrupt checkpoint is set aside and kept for inspection.
    assert folder.versions() == [version(1)]
    assert [path.name for path in tmp_path.glob("corrupt-*")] == ["corrupt-00000002.0-aaaa.2"]
    folder.write(checkpoint(version(3)))
    assert newest_version(open_folder(tmp_path)) == version(3)


@pytest.mark.parametrize(("code", "is_lost"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_checkpoint_whose_disk_does_not_read_it_is_passed_over_and_one_that_waits_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, is_lost: bool
) -> None:
    folder = open_folder(tmp_path)
    folder.write(checkpoint(version(1)))
    newest = folder.write(checkpoint(version(2)))
    read_bytes = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.parent == newest:
            raise OSError(code, os.strerror(code))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    if is_lost:
        assert newest_version(open_folder(tmp_path)) == version(1)
    else:
        with pytest.raises(OSError, match=os.strerror(code)):
            newest_version(open_folder(tmp_path))


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_found(tmp_path: Path, name: str) -> None:
    path = open_folder(tmp_path).write(checkpoint(version(1)))
    (path / name).unlink()
    with pytest.raises(CorruptionError, match=name):
        read(path)


def test_when_no_checkpoint_is_intact_the_error_has_a_fix(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    for step in (1, 2):
        spoil(folder.write(checkpoint(version(step))) / "policy.safetensors")
    with pytest.raises(CorruptionError, match=r"No checkpoint in .* is intact.*from a copy or a backup"):
        open_folder(tmp_path).newest(run=RUN, policy_kind="mlp")


@pytest.mark.parametrize("num_calls", range(6))
def test_crash_at_any_moment_of_writing_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_calls: int
) -> None:
    folder = open_folder(tmp_path)
    folder.write(checkpoint(version(1)))
    calls = 0

    class CrashError(Exception):
        pass

    def sync_or_crash(descriptor: int) -> None:
        nonlocal calls
        if calls == num_calls:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            raise CrashError
        calls += 1

    def skip(path: Path) -> None:
        """No disk to wait for."""

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync_or_crash)
        patch.setattr(checkpoint_module, "sync_folder", skip)
        if num_calls < 4:
            with pytest.raises(CrashError):
                folder.write(checkpoint(version(2)))
        else:
            folder.write(checkpoint(version(2)))
    again = open_folder(tmp_path)
    assert newest_version(again) == version(2 if num_calls >= 4 else 1)
    assert not list(tmp_path.glob(".partial-*"))
    again.write(checkpoint(version(3)))
    assert newest_version(again) == version(3)


def test_checkpoint_of_another_run_or_policy_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    folder.write(checkpoint(version(1)))
    with pytest.raises(StaleFolderError, match="new run folder"):
        folder.newest(run=RunId("other"), policy_kind="mlp")
    with pytest.raises(StaleFolderError, match="char_lm"):
        folder.newest(run=RUN, policy_kind="char_lm")


def test_adapters_are_never_restored_onto_another_model(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    folder.write(checkpoint(version(1), base_digest="smol"))
    with pytest.raises(StaleFolderError, match=r"the model 'smol'.*policy\.path is now the model 'large'"):
        folder.newest(run=RUN, policy_kind="mlp", base_digest="large")
    assert folder.newest(run=RUN, policy_kind="mlp", base_digest="smol") is not None


def test_checkpoint_of_another_format_is_refused_and_not_taken_for_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "FORMAT", 99)
        folder.write(checkpoint(version(1)))
    with pytest.raises(StaleFolderError, match="format 99"):
        folder.newest(run=RUN, policy_kind="mlp")


def test_disk_that_refuses_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(tmp_path)
    folder.write(checkpoint(version(1)))

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "_write_synced", refuse)
        for step in (2, 3):
            with pytest.raises(OSError, match="No space"):
                folder.write(checkpoint(version(step)))
    assert [path.name for path in tmp_path.iterdir()] == ["00000001.0-aaaa.1"]
    folder.write(checkpoint(version(4)))
    assert newest_version(folder) == version(4)


def test_fork_keeps_policy_optimiser_and_version_and_counts_from_zero(tmp_path: Path) -> None:
    parent = checkpoint(version(7))
    path = open_folder(tmp_path / "parent").write(parent)
    assert fork(path, tmp_path / "fork", run=RunId("other-run")) == RUN
    assert list(checkpoints_in(tmp_path / "fork").values()) == [version(7)]
    found = open_folder(tmp_path / "fork").newest(run=RunId("other-run"), policy_kind=parent.policy_kind)
    assert found is not None
    copy = found.checkpoint
    assert copy.forked_from == RUN
    assert copy.progress == TrainingProgress(version=version(7))
    assert copy.lineages == parent.lineages
    assert copy.consumed == ()
    np.testing.assert_array_equal(copy.policy["w"], parent.policy["w"])
    np.testing.assert_array_equal(copy.trainer.tensors["m"], parent.trainer.tensors["m"])
    assert copy.trainer.values == parent.trainer.values
    assert read(path).forked_from is None, "the parent is untouched"


@pytest.mark.parametrize("name", FILES)
def test_fork_of_a_damaged_checkpoint_is_refused_and_writes_nothing(tmp_path: Path, name: str) -> None:
    path = open_folder(tmp_path / "parent").write(checkpoint(version(7)))
    data = (path / name).read_bytes()
    (path / name).write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(CorruptionError, match=name):
        fork(path, tmp_path / "fork", run=RunId("other-run"))
    assert not (tmp_path / "fork").exists()


def test_checkpoint_of_a_version_is_the_last_one_written_of_it(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    folder.write(checkpoint(version(1)))
    folder.write(checkpoint(version(1), written_at_s=2.0))
    last = folder.write(checkpoint(version(2)))
    found = folder.holding(version(1), run=RUN, policy_kind="mlp")
    assert found.checkpoint.written_at_s == 2.0
    folder.verify(version(1))
    with pytest.raises(NotFoundError, match="holds version"):
        folder.holding(version(3), run=RUN, policy_kind="mlp")
    with pytest.raises(StaleFolderError, match="of run test-run"):
        folder.holding(version(1), run=RunId("another"), policy_kind="mlp")
    spoil(last / "policy.safetensors")
    with pytest.raises(CorruptionError, match=r"policy\.safetensors"):
        folder.verify(version(2))
    with pytest.raises(CorruptionError, match=r"policy\.safetensors"):
        folder.holding(version(2), run=RUN, policy_kind="mlp")


def test_checkpoints_written_after_one_are_deleted_and_numbers_go_on(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    first, second, third = (folder.write(checkpoint(version(step))) for step in (1, 2, 3))
    (third / "manifest.json").unlink()  # a kill stopped the deletion
    folder.delete_after(first)
    assert folder.paths() == [first]
    folder.delete_after(first)
    assert newest_version(folder) == version(1)
    assert folder.write(checkpoint(version(2, LineageName("1-bbbb")))).name.startswith(second.name[:8])
