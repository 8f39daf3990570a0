"""The page of a run in a cluster: what its services stream is what the page of their own folder shows."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from tests.support.served_folder import ServedFolder
from tests.support.service_harness import until
from tests.unit.cli.run_folder import write_accounting, write_checkpoint, write_samples
from tests.unit.launch.backup.folders import advance
from tidegate.admission.completion import FILE as COMPLETION_FILE
from tidegate.admission.snapshot import add_lines as add_admission_lines
from tidegate.cli.accounting import ledger_path, read_accounting
from tidegate.cli.run_list import line_of
from tidegate.cli.ui import run_copy
from tidegate.cli.ui.curves import Curves
from tidegate.cli.ui.run_copy import END, SERVICES, RunCopy
from tidegate.cli.ui.run_page import WorkFlowAnswer, facts_of, moment_of
from tidegate.core.completion import RunEnd
from tidegate.core.errors import FolderInUseError, PermissionDeniedError, RecordError
from tidegate.launch.run_folder import read_record
from tidegate.learner.snapshot import add_lines as add_learner_lines
from tidegate.runtime.snapshots.files import AddRecords, SnapshotFiles
from tidegate.runtime.snapshots.servicer import RecordsServicer
from tidegate.task_queue.journal_file import FILE_NAME as JOURNAL_FILE
from tidegate.task_queue.snapshot import add_journal
from tidegate.trajectory_store.browsing import Filter, page_of
from tidegate.trajectory_store.snapshot import add_ledger
from tidegate.wire.call_permissions import ROLES
from tidegate.wire.clients.records import read_records

pytestmark = pytest.mark.integration


Services: TypeAlias = ServedFolder[AddRecords]


def services_of(folder: Path) -> Services:
    """The owners of a run's records."""
    owners: dict[str, AddRecords] = {
        "admission": add_admission_lines,
        "learner": add_learner_lines,
        "task_queue": partial(add_journal, path=folder / "task_queue" / JOURNAL_FILE),
        "trajectory_store": partial(add_ledger, path=ledger_path(folder)),
    }
    return ServedFolder(folder, owners, RecordsServicer, role="ui")


def copy_to(services: Services, folder: Path) -> RunCopy:
    copy = RunCopy(services.record(), folder, target="mean_return>=475", channel_to=services.channel_to)
    copy.begin()
    return copy


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    folder = tmp_path / "volumes"
    write_checkpoint(folder, write_accounting(folder), step=3)
    write_samples(folder)
    running = services_of(folder)
    for service in SERVICES:
        await running.start(service)
    yield running
    await running.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "page" / "cartpole"


async def copy_all(copy: RunCopy) -> None:
    for service in SERVICES:
        await copy.copy(service)


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


async def test_the_page_of_a_copy_shows_what_the_services_have(services: Services, folder: Path) -> None:
    copy = copy_to(services, folder)
    await copy_all(copy)
    advance(services.folder, seq=13, step=3)
    await copy_all(copy)
    assert read_accounting(folder) == read_accounting(services.folder)
    assert page_of(folder / "trajectory_store", Filter()) == page_of(
        services.folder / "trajectory_store", Filter()
    )
    curves, original = Curves(folder), Curves(services.folder)
    assert curves.follow() == original.follow() > 0
    assert curves.answer() == original.answer()
    assert WorkFlowAnswer(folder).answer() == WorkFlowAnswer(services.folder).answer()
    assert moment_of(folder) == moment_of(services.folder)
    line, facts = line_of(folder), facts_of(folder)
    assert (line.state, line.run_id, facts["target"]) == (
        "running",
        services.record().run_id,
        "mean_return>=475",
    )


async def test_a_copy_has_no_weights_and_no_secrets_and_leaves_nothing_at_the_services(
    services: Services, folder: Path
) -> None:
    await copy_all(copy_to(services, folder))
    copied = files_below(folder)
    assert {name for name in copied if name.startswith("learner/")} == {"learner/steps.jsonl"}
    secret = read_record(services.folder).call_secret.encode()
    assert secret
    assert all(secret not in content for content in copied.values())
    await until(lambda: not services.staged())


async def test_readers_leave_no_log_beside_a_copied_database(services: Services, folder: Path) -> None:
    """A log of the copy before would belong to the next one."""
    copy = copy_to(services, folder)
    for _ in range(2):
        await copy_all(copy)
        read_accounting(folder)
    copied = files_below(folder)
    assert {name for name in copied if name.startswith("trajectory_store/")} == {
        f"trajectory_store/{ledger_path(folder).name}"
    }
    assert {name for name in copied if name.startswith("task_queue/")} == {f"task_queue/{JOURNAL_FILE}"}


async def test_a_run_that_completes_ends_on_the_page_and_one_with_another_target_runs_again(
    services: Services, folder: Path
) -> None:
    copy = copy_to(services, folder)
    end = services.folder / "admission" / COMPLETION_FILE
    end.write_bytes(msgspec.json.encode(RunEnd(target="version_step>=3")))
    await copy.copy("admission")
    assert line_of(folder).state == "running", "its last checkpoint is not written yet"
    end.write_bytes(msgspec.json.encode(RunEnd(target="version_step>=3", checkpointed=True)))
    await copy.copy("admission")
    line = line_of(folder)
    assert (line.state, line.ended_by) == ("ended", "target")
    assert facts_of(folder)["summary"] == END
    copy.note("learner", "unreachable")
    assert moment_of(folder)["problems"] == [], "its pod goes with the end of the run"
    end.unlink()
    await copy.copy("admission")
    assert line_of(folder).state == "running"


async def test_a_service_that_fails_leaves_its_old_records_and_the_page_says_so(
    services: Services, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_copy, "PERIOD_S", 0.01)
    monkeypatch.setattr(run_copy, "COPYING_SHARE_MAX", 1.0)
    copy = copy_to(services, folder)
    await copy_all(copy)
    before = ledger_path(folder).read_bytes()

    def dies(files: SnapshotFiles) -> None:
        raise MemoryError

    await services.restart("trajectory_store", dies)
    following = asyncio.create_task(copy.follow())
    await until(lambda: bool(moment_of(folder)["problems"]))
    [problem] = moment_of(folder)["problems"]
    assert problem.startswith("The records of trajectory_store are not here yet: ")
    assert ledger_path(folder).read_bytes() == before
    await services.restart("trajectory_store", partial(add_ledger, path=ledger_path(services.folder)))
    await until(lambda: not moment_of(folder)["problems"])
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following


@pytest.mark.parametrize(
    "path", ["run.json", "learner/../run.json", "task_queue/journal.db", "learner/.lock"]
)
async def test_a_file_that_is_not_the_services_own_is_refused(
    services: Services, folder: Path, path: str
) -> None:
    def lies(files: SnapshotFiles) -> None:
        files.add(services.folder / "run.json", as_path=path)

    await services.restart("learner", lies)
    copy = copy_to(services, folder)
    before = (folder / "run.json").read_bytes()
    with pytest.raises(RecordError, match="this file is not its own"):
        await copy.copy("learner")
    assert (folder / "run.json").read_bytes() == before


async def test_a_file_that_does_not_fit_on_the_disk_is_refused_before_it_is_read(
    services: Services, folder: Path
) -> None:
    with (services.folder / "learner" / "steps.jsonl.1").open("wb") as large:
        large.truncate(8 << 40)
    copy = copy_to(services, folder)
    with pytest.raises(RecordError, match="does not fit on the disk of the page"):
        await copy.copy("learner")


async def test_only_the_page_reads_records(services: Services) -> None:
    for role in ROLES:
        if role == "ui":
            continue
        stream = read_records(services.channel_to("learner", role), service="learner")
        with pytest.raises(PermissionDeniedError):
            await stream.next_file()


async def test_two_processes_cannot_copy_to_one_folder(services: Services, folder: Path) -> None:
    copy_to(services, folder)
    with pytest.raises(FolderInUseError):
        copy_to(services, folder)
