"""Backups of a run in a cluster: services that go on, restart or lie between any two calls, and what is restored."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from tests.support.call_credentials import channel_as, token_of
from tests.support.served_folder import ServedFolder
from tests.support.service_harness import until
from tests.unit.cli.run_folder import write_accounting, write_checkpoint, write_progress
from tests.unit.launch.backup.folders import advance, objects, place_at, restored, state_of
from tidegate.admission.completion import FILE as COMPLETION_FILE
from tidegate.admission.kubernetes.access import LEADER_FILE
from tidegate.cli.accounting import ledger_path, read_accounting
from tidegate.cli.backup import pods_command
from tidegate.cli.backup.command import Backups
from tidegate.cli.backup.pods_command import PodBackups
from tidegate.core.completion import RunEnd
from tidegate.core.errors import ConflictError, PermissionDeniedError, RecordError, UnavailableError
from tidegate.launch.backup import pods
from tidegate.launch.backup.manifest import manifest_name
from tidegate.launch.backup.pods import pods_source
from tidegate.launch.run_folder import read_record
from tidegate.launch.run_record import RunRecord
from tidegate.learner.checkpoint import checkpoints_in
from tidegate.learner.snapshot import learner_moment
from tidegate.runtime.backup_state import is_expected, read_state
from tidegate.runtime.companion_settings import BackupConfig
from tidegate.runtime.snapshots import servicer
from tidegate.runtime.snapshots.files import MomentOf, SnapshotFiles
from tidegate.runtime.snapshots.servicer import SnapshotServicer
from tidegate.task_queue.journal_file import FILE_NAME as JOURNAL_FILE
from tidegate.task_queue.snapshot import journal_moment
from tidegate.trajectory_store import schema
from tidegate.trajectory_store.snapshot import ledger_moment
from tidegate.weight_distribution.snapshot import best_moment
from tidegate.wire.call_permissions import ROLES
from tidegate.wire.clients.snapshots import SnapshotCall
from tidegate.wire.snapshots import SnapshotOpened, SnapshotRequest

pytestmark = pytest.mark.integration

Owners = dict[str, MomentOf]


Pods: TypeAlias = ServedFolder[MomentOf]


def pods_of(folder: Path) -> Pods:
    """The four owners of a run's files."""
    owners: Owners = {
        "task_queue": partial(journal_moment, path=folder / "task_queue" / JOURNAL_FILE),
        "trajectory_store": partial(ledger_moment, path=ledger_path(folder)),
        "learner": partial(learner_moment, checkpoints=folder / "learner" / "checkpoints"),
        "weight_distribution": partial(best_moment, folder=folder / "weight_distribution"),
    }
    return ServedFolder(folder, owners, SnapshotServicer, role="backup")


async def back_up(running: Pods, bucket: Path) -> None:
    source = partial(
        pods_source,
        running.record(),
        running.folder,
        staging=running.folder.parent,
        channel_to=running.channel_to,
    )
    backups = Backups(
        running.folder,
        place_at(bucket),
        running.record().run_id,
        keep=3,
        say=lambda _line: None,
        open_source=source,
    )
    await backups.make()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Pods]:
    folder = tmp_path / "volumes"
    write_checkpoint(folder, write_accounting(folder), step=3)
    pods_of_run = pods_of(folder)
    for service in pods_of_run.owners:
        await pods_of_run.start(service)
    yield pods_of_run
    await pods_of_run.stop()


async def test_restored_pods_are_the_run_and_a_second_backup_sends_what_is_new(
    running: Pods, tmp_path: Path
) -> None:
    await back_up(running, tmp_path / "bucket")
    before = objects(tmp_path / "bucket")
    await back_up(running, tmp_path / "bucket")
    # What the run is, as of when it was read, is in one file: nothing else was sent again.
    assert objects(tmp_path / "bucket") == before
    found = await asyncio.to_thread(restored, tmp_path / "bucket", tmp_path / "again")
    counts = found.manifest.counts
    assert (counts.admitted, counts.trained, counts.waiting, counts.in_flight) == (12, 6, 3, 2)
    assert read_accounting(tmp_path / "again") == read_accounting(running.folder)
    record = read_record(tmp_path / "again")
    assert (record.cluster, record.addresses, record.call_secret) == (False, {}, "")
    await until(lambda: not running.staged())


# Calls, then files, of the backup, after one of which the whole run makes progress: after weight distribution, learner,
# task queue and store have fixed their moments, and while files are sent.
MOMENTS = (0, 1, 2, 3, 4, 8)


@pytest.mark.parametrize("gap", MOMENTS)
async def test_backup_is_balanced_whatever_the_run_does_between_two_of_its_calls(
    running: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    monkeypatch.setattr(pods, "PAIR_PAUSE_S", 0.0)
    steps = itertools.count()

    def then_goes_on(name: str) -> None:
        original: Any = getattr(SnapshotCall, name)

        async def wrapped(self: SnapshotCall, *arguments: Any) -> Any:
            found = await original(self, *arguments)
            if next(steps) == gap:
                advance(running.folder, seq=13, step=3)
            return found

        monkeypatch.setattr(SnapshotCall, name, wrapped)

    then_goes_on("open")
    then_goes_on("next_file")
    await back_up(running, tmp_path / "bucket")
    await asyncio.to_thread(restored, tmp_path / "bucket", tmp_path / "again")
    audit = read_accounting(tmp_path / "again").audit
    assert (audit.unknown, audit.balanced) == (0, True)
    (held,) = [
        version.step for version in checkpoints_in(tmp_path / "again" / "learner" / "checkpoints").values()
    ]
    with schema.reading(ledger_path(tmp_path / "again")) as db:
        (trained,) = db.execute("SELECT max(trained_step) FROM trajectories").fetchone()
    assert trained >= held - 1
    # The journal may not have heard of the last outcomes, and never of more than the ledger logged.
    with schema.reading(ledger_path(tmp_path / "again")) as db:
        (logged,) = db.execute("SELECT coalesce(max(cursor), 0) FROM outcomes").fetchone()
    assert read_accounting(running.folder).audit.balanced
    assert logged > 0


async def test_ledger_that_is_always_ahead_of_the_journal_makes_no_backup(
    running: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "PAIR_PAUSE_S", 0.0)
    monkeypatch.setattr(pods, "PAIR_ATTEMPTS", 3)
    record, seqs = read_record(running.folder), iter(range(13, 100))
    await running.restart(
        "task_queue", _behind(running.owners["task_queue"], lambda: next(seqs), record, running)
    )
    with pytest.raises(UnavailableError, match="not seen at one moment"):
        await back_up(running, tmp_path / "bucket")
    assert objects(tmp_path / "bucket") == set()


def _behind(original: MomentOf, seq: Callable[[], int], record: RunRecord, pods_of_run: Pods) -> MomentOf:
    def moment(request: SnapshotRequest, files: SnapshotFiles) -> Any:
        for opened in original(request, files):
            write_progress(pods_of_run.folder, record, seqs=(seq(),))
            yield opened

    return moment


@pytest.mark.parametrize("service", ["learner", "task_queue", "trajectory_store", "weight_distribution"])
async def test_service_that_dies_costs_the_backup_and_leaves_the_one_before_in_force(
    running: Pods, tmp_path: Path, service: str
) -> None:
    await back_up(running, tmp_path / "bucket")
    advance(running.folder, seq=13, step=3)
    original = running.owners[service]

    def dies(request: SnapshotRequest, files: SnapshotFiles) -> Any:
        yield from original(request, files)
        raise MemoryError

    await running.restart(service, dies)
    with pytest.raises(Exception, match=service):
        await back_up(running, tmp_path / "bucket")
    found = await asyncio.to_thread(restored, tmp_path / "bucket", tmp_path / "again")
    assert (found.manifest.number, found.passed_over) == (1, ())
    await until(lambda: not running.staged())


async def test_only_a_backup_reads_files_and_one_at_a_time(
    running: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = running.addresses["learner"][0]
    for role in ROLES:
        if role == "backup":
            continue
        channel = channel_as(role, address)
        with pytest.raises(PermissionDeniedError):
            await SnapshotCall(channel, service="learner").open(SnapshotRequest())
        await channel.close()
    with (running.folder / "learner" / "steps.jsonl.1").open("wb") as large:  # more than a call sends unread
        large.truncate(64 << 20)
    first, second = (SnapshotCall(running.channel_to("learner"), service="learner") for _ in range(2))
    await first.open(SnapshotRequest())
    with monkeypatch.context() as patched:
        patched.setattr(servicer, "BEFORE_S_MAX", 0.05)
        with pytest.raises(UnavailableError, match="Another backup reads"):
            await second.open(SnapshotRequest())
    first.close()
    # The call that ended, however it ended, holds nothing back.
    third = SnapshotCall(running.channel_to("learner"), service="learner")
    await third.open(SnapshotRequest())
    third.close()
    store = SnapshotCall(running.channel_to("trajectory_store"), service="trajectory_store")
    with pytest.raises(RecordError, match="the request names neither"):
        await store.open(SnapshotRequest())


async def test_service_that_sends_the_file_of_another_makes_no_backup(running: Pods, tmp_path: Path) -> None:
    def lies(_request: SnapshotRequest, files: SnapshotFiles) -> Any:
        yield SnapshotOpened()
        files.add(running.folder / "run.json", as_path="task_queue/../run.json")
        files.add(running.folder / "run.json", as_path="run.json")

    await running.restart("weight_distribution", lies)
    with pytest.raises(RecordError, match="this file is not its own"):
        await back_up(running, tmp_path / "bucket")


def _failures(folder: Path) -> dict[str, int]:
    state = read_state(folder)
    return {} if state is None else state.failures


async def test_place_that_cannot_be_opened_is_said_and_ends_no_pod(running: Pods) -> None:
    config = BackupConfig(to="file:///nowhere/at/all")
    task = asyncio.ensure_future(pods_command._make_backups(running.record(), config, running.folder))  # pyright: ignore[reportPrivateUsage]
    await until(lambda: bool(_failures(running.folder)))
    assert not task.done()
    assert "cannot be opened" in state_of(running.folder).problem
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@asynccontextmanager
async def making(
    running: Pods, bucket: Path, place: Any = None, *, beside_leader: bool = False, every_s: float = 3600.0
) -> AsyncGenerator[PodBackups]:
    backups = PodBackups(
        running.record(),
        running.folder,
        place or place_at(bucket),
        keep=3,
        every_s=every_s,
        token=token_of("backup"),
    )
    task = asyncio.ensure_future(backups.run_beside_leader() if beside_leader else backups.run())
    yield backups
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_process_of_a_pod_outlives_failures_and_makes_a_last_backup_of_a_complete_run(
    running: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_command, "LOOK_PERIOD_S", 0.01)
    monkeypatch.setattr(pods_command, "BACKOFF", msgspec.structs.replace(pods_command.BACKOFF, start_s=0.01))
    checkpoints = running.folder / "learner" / "checkpoints"
    checkpoints.rename(tmp_path / "kept")  # a run that begins
    async with making(running, tmp_path / "bucket"):
        await asyncio.sleep(0.1)
        assert (state_of(running.folder).number, state_of(running.folder).problem) == (0, "")
        await running.servers["learner"].stop(grace_s=0.0)
        await until(lambda: "learner" in state_of(running.folder).problem)
        shutil.move(tmp_path / "kept", checkpoints)
        await running.start("learner")
        await until(lambda: state_of(running.folder).number == 1)
        assert (state_of(running.folder).every_s, state_of(running.folder).problem) == (3600.0, "")
        (running.folder / "admission").mkdir(exist_ok=True)
        end = RunEnd(target="version_step>=3", checkpointed=True)
        await running.servers["learner"].stop(grace_s=0.0)
        (running.folder / "admission" / COMPLETION_FILE).write_bytes(msgspec.json.encode(end))
        await until(lambda: "learner" in state_of(running.folder).problem)
        assert state_of(running.folder).every_s == 0.0
        assert is_expected(running.folder), "admission keeps the learner for it"
        await running.start("learner")
        await until(lambda: state_of(running.folder).number == 2)
        await until(lambda: not is_expected(running.folder))


async def test_backups_are_made_beside_the_leader_and_go_on_behind_those_of_another_pod(
    running: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_command, "LOOK_PERIOD_S", 0.01)
    leads = running.folder / "admission" / LEADER_FILE
    leads.parent.mkdir(exist_ok=True)
    async with making(running, tmp_path / "bucket", beside_leader=True):
        await asyncio.sleep(0.2)
        assert read_state(running.folder) is None, "none is expected of a pod that stands by"
        leads.touch()
        await until(lambda: is_expected(running.folder) and state_of(running.folder).number == 1)
        leads.unlink()
        await until(lambda: not is_expected(running.folder))
        await back_up(running, tmp_path / "bucket")  # by the pod that leads meanwhile
        leads.touch()
        await until(lambda: state_of(running.folder).number == 3)
        assert state_of(running.folder).problem == ""


async def test_last_backup_of_an_earlier_leader_is_passed_over_and_a_second_one_stops_the_backups(
    running: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_command, "LOOK_PERIOD_S", 0.01)
    monkeypatch.setattr(pods_command, "EARLIER_LEADER_S", 0.1)
    bucket = tmp_path / "bucket"
    place = place_at(bucket)
    create = place.create

    async def create_second(name: str, data: bytes) -> None:
        """The pod that led before is faster, but for the second backup."""
        if name != manifest_name(2):
            await back_up(running, bucket)
        await create(name, data)

    monkeypatch.setattr(place, "create", create_second)
    leads = running.folder / "admission" / LEADER_FILE
    leads.parent.mkdir(exist_ok=True)
    async with making(running, bucket, place, beside_leader=True, every_s=0.5):
        leads.touch()
        await until(lambda: _failures(running.folder) == {"conflict": 1})
        await until(lambda: state_of(running.folder).number == 2)
        assert state_of(running.folder).problem == ""
        await until(lambda: _failures(running.folder) == {"conflict": 2})
        await asyncio.sleep(1.0)
        state = state_of(running.folder)
        # Number 3 is the other one's, and nothing follows it.
        assert (state.number, state.failures) == (3, {"conflict": 2})


async def test_second_writer_stops_the_backups_and_not_the_pod(
    running: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_command, "LOOK_PERIOD_S", 0.01)

    async def refuse(_self: Backups) -> None:
        raise ConflictError("another process wrote it")

    monkeypatch.setattr(Backups, "make", refuse)
    async with making(running, tmp_path / "bucket"):
        await until(lambda: _failures(running.folder) == {"conflict": 1})
