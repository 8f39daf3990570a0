"""Backups of a run folder: whatever is killed, cut or changed, a state of the run is restored, or none."""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.cli.run_folder import write_accounting, write_checkpoint, write_progress
from tests.unit.launch.backup.folders import (
    advance,
    back_up,
    head_of,
    objects,
    place_at,
    restored,
    state_of,
)
from tidegate.cli.accounting import ledger_path, read_accounting
from tidegate.cli.app import run as tidegate
from tidegate.cli.backup import command
from tidegate.cli.backup.command import Backups
from tidegate.core.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    DeadlineError,
    UnavailableError,
)
from tidegate.launch.backup import snapshot as snapshots
from tidegate.launch.backup.manifest import (
    BackupFile,
    decode_manifest,
    encode_manifest,
    manifest_name,
    object_name,
)
from tidegate.launch.run_folder import read_record
from tidegate.launch.run_record import RunRecord
from tidegate.learner.checkpoint import checkpoints_in, read
from tidegate.learner.snapshot import NoCheckpointError
from tidegate.runtime.backup_state import NoSpaceError, backup_problem, expect_backups
from tidegate.runtime.object_storage.place import ObjectPlace
from tidegate.runtime.snapshots import files as snapshot_files
from tidegate.task_queue import journal_file
from tidegate.trajectory_store import schema


class Killed(BaseException):
    """The process ends here."""


class CountedPlace(ObjectPlace):
    """Ends the process before the call of this number that changes the place."""

    calls_left = -1

    def _count(self) -> None:
        if self.calls_left == 0:
            raise Killed
        self.calls_left -= 1

    async def put(self, name: str, data: bytes) -> None:
        self._count()
        await super().put(name, data)

    async def create(self, name: str, data: bytes) -> None:
        self._count()
        await super().create(name, data)

    async def delete(self, name: str) -> None:
        self._count()
        await super().delete(name)


def versions(folder: Path) -> list[int]:
    return [version.step for version in checkpoints_in(folder / "learner" / "checkpoints").values()]


def test_restored_folder_is_the_run_at_its_newest_checkpoint(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "bucket")
    found = restored(tmp_path / "bucket", tmp_path / "again")
    assert read_accounting(tmp_path / "again") == read_accounting(folder)
    assert read_accounting(tmp_path / "again").audit.balanced
    assert head_of(tmp_path / "again") == head_of(folder)
    (checkpoint,) = checkpoints_in(tmp_path / "again" / "learner" / "checkpoints")
    assert read(checkpoint).progress.version.step == 3
    steps = Path("learner") / "steps.jsonl"
    assert (tmp_path / "again" / steps).read_bytes() == (folder / steps).read_bytes()
    # Of 12 that were admitted 9 arrived and one was dropped: two are on no machine any more.
    counts = found.manifest.counts
    assert (counts.admitted, counts.trained, counts.waiting, counts.in_flight) == (12, 6, 3, 2)
    assert counts.beyond_checkpoint == 0


def test_what_is_there_already_is_not_sent_again(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "bucket")
    before = objects(tmp_path / "bucket")
    back_up(folder, tmp_path / "bucket")
    assert objects(tmp_path / "bucket") == before
    state = state_of(folder)
    assert (state.number, state.bytes_uploaded) == (2, 0)


def test_secrets_of_a_run_are_in_no_object(folder: Path, tmp_path: Path) -> None:
    record = read_record(folder)
    back_up(folder, tmp_path / "bucket")
    for path in (tmp_path / "bucket").rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert record.call_secret.encode() not in data
        assert record.task_secret.encode() not in data
    restored(tmp_path / "bucket", tmp_path / "again")
    assert read_record(tmp_path / "again").task_secret == ""


@pytest.mark.slow
def test_upload_that_is_killed_between_any_two_calls_leaves_a_whole_backup_in_force(
    folder: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    back_up(folder, first, keep=1)
    heads = {1: head_of(folder)}
    advance(folder, seq=13, step=3)
    heads[2] = head_of(folder)
    seen: set[int] = set()
    for calls in range(1000):
        bucket, again = tmp_path / f"bucket-{calls}", tmp_path / f"again-{calls}"
        shutil.copytree(first, bucket)
        place = place_at(bucket, CountedPlace)
        place.calls_left = calls
        ended = False
        try:
            back_up(folder, bucket, keep=1, place=place)
            ended = True
        except Killed:
            pass
        number = restored(bucket, again).manifest.number
        seen.add(number)
        assert head_of(again) == heads[number]
        assert read_accounting(again).audit.balanced
        # The next process goes on from there, and leaves no garbage of the killed one.
        back_up(folder, bucket, keep=1)
        after = tmp_path / f"after-{calls}"
        assert objects(bucket) == restored(bucket, after).manifest.objects()
        assert head_of(after) == heads[2]
        if ended:
            break
    assert seen == {1, 2}


def test_older_backups_are_deleted_with_what_only_they_had(folder: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    back_up(folder, bucket, keep=2)
    for number in range(2):
        advance(folder, seq=13 + 2 * number, step=3 + number)
        back_up(folder, bucket, keep=2)
    kept = sorted(path.name for path in (bucket / "manifests").iterdir())
    assert kept == ["00000002.json", "00000003.json"]
    used: set[str] = set()
    for name in kept:
        used |= decode_manifest((bucket / "manifests" / name).read_bytes(), name=name).objects()
    assert objects(bucket) == used


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_damaged_backup_is_passed_over_and_said(folder: Path, tmp_path: Path, damage: str) -> None:
    bucket = tmp_path / "bucket"
    back_up(folder, bucket)
    head, before = head_of(folder), objects(bucket)
    advance(folder, seq=13, step=3)
    back_up(folder, bucket)
    newest = sorted(objects(bucket) - before)
    path = bucket / newest[0]
    if damage == "missing":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-1] if damage == "truncated" else bytes([data[0] ^ 1]) + data[1:])
    found = restored(bucket, tmp_path / "again")
    assert found.manifest.number == 1
    assert len(found.passed_over) == 1
    assert head_of(tmp_path / "again") == head


@pytest.mark.parametrize("name", ["manifests", "objects"])
def test_place_without_one_whole_backup_fills_no_folder(folder: Path, tmp_path: Path, name: str) -> None:
    bucket = tmp_path / "bucket"
    back_up(folder, bucket)
    for path in (bucket / name).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptionError, match="No backup"):
        restored(bucket, tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir() if "again" in path.name] == []


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "data/../../outside", ""])
def test_manifest_that_names_a_file_outside_of_the_folder_is_refused(
    folder: Path, tmp_path: Path, path: str
) -> None:
    bucket = tmp_path / "bucket"
    back_up(folder, bucket)
    stored = bucket / manifest_name(1)
    manifest = decode_manifest(stored.read_bytes(), name="1")
    evil = BackupFile(path, 1, manifest.files[0].parts[:1])
    changed = msgspec.structs.replace(manifest, files=(evil,))
    with pytest.raises(CorruptionError, match="names files"):
        decode_manifest(encode_manifest(changed), name="1")


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let the run go on between the two parts of a snapshot that must fit each other, whichever is read first."""
    acted: list[str] = []
    for name in ("add_newest_checkpoint", "_add_databases"):
        original = getattr(snapshots, name)

        def wrapped(*arguments: Any, original: Any = original, name: str = name) -> Any:
            found = original(*arguments)
            if not acted:
                acted.append(name)
                act()
            return found

        monkeypatch.setattr(snapshots, name, wrapped)


def test_ledger_of_a_backup_has_every_update_of_its_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between(monkeypatch, lambda: advance(folder, seq=13, step=3))
    back_up(folder, tmp_path / "bucket")
    restored(tmp_path / "bucket", tmp_path / "again")
    (held,) = versions(tmp_path / "again")
    with schema.reading(ledger_path(tmp_path / "again")) as db:
        (trained,) = db.execute("SELECT max(trained_step) FROM trajectories").fetchone()
    assert trained >= held - 1
    assert read_accounting(tmp_path / "again").audit.balanced


def test_journal_of_a_backup_has_admitted_what_arrives_while_it_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, seqs = read_record(folder), iter(((13,), (14,)))
    next_seq = journal_file.next_seq

    def and_arrives(db: Any) -> int:
        found = next_seq(db)
        for arriving in seqs:
            write_progress(folder, record, seqs=arriving)
            break
        return found

    monkeypatch.setattr(journal_file, "next_seq", and_arrives)
    back_up(folder, tmp_path / "bucket")
    monkeypatch.undo()
    restored(tmp_path / "bucket", tmp_path / "again")
    audit = read_accounting(tmp_path / "again").audit
    assert (audit.unknown, audit.balanced) == (0, True)


def test_checkpoint_that_is_deleted_while_it_is_copied_is_in_the_backup(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between(monkeypatch, lambda: shutil.rmtree(folder / "learner" / "checkpoints"))
    back_up(folder, tmp_path / "bucket")
    restored(tmp_path / "bucket", tmp_path / "again")
    assert versions(tmp_path / "again") == [3]


def test_run_without_a_checkpoint_has_no_state_to_copy(tmp_path: Path) -> None:
    write_accounting(tmp_path / "run")
    with pytest.raises(NoCheckpointError):
        back_up(tmp_path / "run", tmp_path / "bucket")


def test_second_process_that_backs_up_the_same_run_is_refused(folder: Path, tmp_path: Path) -> None:
    run_id, bucket = read_record(folder).run_id, tmp_path / "bucket"
    mine, theirs = (
        Backups(folder, place_at(bucket), run_id, keep=3, say=lambda _line: None) for _ in range(2)
    )

    async def both() -> None:
        await mine.make()
        await theirs.make()
        advance(folder, seq=13, step=3)
        await mine.make()

    with pytest.raises(ConflictError, match="another machine"):
        asyncio.run(both())
    assert restored(bucket, tmp_path / "again").manifest.number == 2


def test_place_of_another_run_is_refused(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "bucket")
    other = tmp_path / "other"
    write_checkpoint(other, write_accounting(other), step=3)
    with pytest.raises(ConflictError, match="backups of run"):
        back_up(other, tmp_path / "bucket")


class SilentPlace(ObjectPlace):
    """Lists, and answers nothing that is written in time."""

    async def put(self, name: str, data: bytes) -> None:
        raise DeadlineError(f"{self.url} did not write {name}")


def test_place_that_does_not_answer_costs_the_backup_and_leaves_the_folder_as_it_was(
    folder: Path, tmp_path: Path
) -> None:
    def files() -> dict[Path, bytes]:
        named = (path for path in folder.rglob("*") if path.is_file())
        return {
            path: path.read_bytes() for path in named if path.suffix not in (".sqlite-shm", ".sqlite-wal")
        }

    before = files()
    with pytest.raises(DeadlineError):
        back_up(folder, tmp_path / "bucket", place=place_at(tmp_path / "bucket", SilentPlace))
    assert files() == before


def test_failed_try_is_noted_until_one_succeeds(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(folder, tmp_path / "bucket")
    monkeypatch.setattr(command, "LAST_TRIES_S", -1.0)
    backups = Backups(
        folder,
        place_at(tmp_path / "bucket", SilentPlace),
        read_record(folder).run_id,
        keep=3,
        say=lambda _line: None,
    )
    advance(folder, seq=13, step=3)
    with pytest.raises(UnavailableError, match="was not made"):
        asyncio.run(backups.run(every_s=600.0, once=False))
    state = state_of(folder)
    assert (state.number, state.version) == (1, "0-aaaa@3")
    assert state.failures == {"deadline": 1}
    assert "did not write" in backup_problem(state, now_s=state.made_at_s)
    back_up(folder, tmp_path / "bucket")
    state = state_of(folder)
    assert backup_problem(state, now_s=state.made_at_s) == ""
    assert (state.number, state.failures) == (2, {"deadline": 1})


def test_backup_notes_how_long_it_took_and_keeps_when_the_next_is_due(folder: Path, tmp_path: Path) -> None:
    expect_backups(folder, place=place_at(tmp_path / "bucket").url, every_s=60.0, now_s=5.0)
    back_up(folder, tmp_path / "bucket")
    state = state_of(folder)
    assert (state.every_s, state.begun_at_s) == (60.0, 5.0)
    assert state.duration_s > 0.0
    assert state.num_bytes > 0


def test_disk_that_is_too_small_for_the_copies_is_counted_as_such(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_files, "FREE_BYTES_MIN", 1 << 62)
    monkeypatch.setattr(command, "LAST_TRIES_S", -1.0)
    backups = Backups(
        folder, place_at(tmp_path / "bucket"), read_record(folder).run_id, keep=3, say=lambda _line: None
    )
    with pytest.raises(UnavailableError, match="was not made"):
        asyncio.run(backups.run(every_s=600.0, once=False))
    assert state_of(folder).failures == {"disk": 1}


def test_folder_that_is_not_empty_is_not_filled(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "bucket")
    with pytest.raises(ConfigError, match="not empty"):
        restored(tmp_path / "bucket", folder)


def test_commands_back_up_and_restore_a_run_by_the_place_of_all_runs(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, again = tmp_path / "bucket", tmp_path / "again"
    assert tidegate(["backup", str(folder), "--to", bucket.as_uri()]) == 0
    assert (bucket / read_record(folder).run_id / object_name("")[:7]).is_dir()
    assert tidegate(["restore", bucket.as_uri(), str(again)]) == 0
    output = capsys.readouterr().out
    assert "2 trajectories that were in flight are played again" in output
    assert f"tidegate up {again}/run.yaml --dir {again}" in output
    assert tidegate(["audit", str(again), "--verify"]) == 0


def test_restore_says_what_it_costs_that_no_backup_has_payloads(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, bucket = read_record(folder), tmp_path / "bucket"
    # Three that wait and one that arrives; two updates after the checkpoint train four of the five.
    write_progress(folder, record, seqs=(13,), step=3)
    write_progress(folder, record, seqs=(14,), step=4)
    assert tidegate(["backup", str(folder), "--to", bucket.as_uri()]) == 0
    assert tidegate(["restore", bucket.as_uri(), str(tmp_path / "again")]) == 0
    output = capsys.readouterr().out
    assert "5 finished trajectories cannot be trained any more" in output
    assert (
        "1 that waited (reason failed), 4 that were trained after the checkpoint (reason superseded)"
        in output
    )
    assert "2 updates are made again from version 0-aaaa@3" in output


def test_place_with_several_runs_asks_which_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    records: list[RunRecord] = [read_record(folder), write_accounting(other)]
    write_checkpoint(other, records[1], step=3)
    for each in (folder, other):
        assert tidegate(["backup", str(each), "--to", (tmp_path / "bucket").as_uri()]) == 0
    assert tidegate(["restore", (tmp_path / "bucket").as_uri(), str(tmp_path / "again")]) == 2
    assert all(record.run_id in capsys.readouterr().err for record in records[:1])


def test_backup_to_another_place_does_not_end_the_watch_over_the_backups_of_the_run(
    folder: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    expect_backups(folder, place=place_at(own).url, every_s=600.0, now_s=1_000.0)
    back_up(folder, own)
    back_up(folder, tmp_path / "other")
    advance(folder, seq=13, step=3)
    back_up(folder, own)
    state = state_of(folder)
    assert (state.number, state.every_s) == (2, 600.0)
    assert "none was completed" in backup_problem(state, now_s=state.made_at_s + 1801.0)


def test_disk_that_fills_while_the_databases_are_copied_is_not_taken_for_damage(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, really_connect = tmp_path / "staging", sqlite3.connect

    def connect(path: Any, **named: Any) -> sqlite3.Connection:
        connection = really_connect(path, **named)
        if str(path).startswith(str(staging)):
            connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    with (
        pytest.raises(NoSpaceError, match=r"could not be copied for a backup\. database or disk is full"),
        snapshots.snapshot_of(folder, staging=staging),
    ):
        pass
