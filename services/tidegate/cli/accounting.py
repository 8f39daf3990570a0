"""The accounting of a run: the admission journal of the task queue and the ledger of the trajectory store.

Both are opened read-only, while the services run or afterwards; those of a cluster are queried. The ledger is read
first: everything in it was admitted before, so the journal, which is read later, must contain it. With replay the
learner's newest checkpoint is read before both.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from tidegate.cli.queries import channel_to
from tidegate.core.audit import Audit, JournalTotals, LearnerTotals, LedgerTotals, reconcile
from tidegate.core.errors import NotFoundError, TidegateError, UnavailableError
from tidegate.core.ids import TrajectoryId
from tidegate.core.verification import Verification
from tidegate.launch.run_folder import read_record
from tidegate.launch.run_record import RunRecord
from tidegate.learner.checkpoint import sampled_units
from tidegate.task_queue.journal import moment as read_journal_moment
from tidegate.task_queue.journal_file import FILE_NAME as JOURNAL_FILE
from tidegate.trajectory_store import reading
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.trajectory_store.verifying import verify
from tidegate.wire.clients.learner import LearnerClient
from tidegate.wire.clients.task_queue import TaskQueueClient
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient

TotalsT = TypeVar("TotalsT", JournalTotals, LedgerTotals)


class RunAccounting(msgspec.Struct, frozen=True):
    """The totals of journal and ledger, and the audit of them."""

    journal: JournalTotals
    ledger: LedgerTotals
    audit: Audit


def ledger_path(folder: Path) -> Path:
    """Where the store of a run folder keeps its ledger."""
    return folder / "trajectory_store" / LEDGER_FILE


def checkpoints_path(folder: Path) -> Path:
    """Where the learner of a run folder keeps its checkpoints."""
    return folder / "learner" / "checkpoints"


def journal_path(folder: Path) -> Path:
    """Where the task queue of a run folder keeps its journal."""
    return folder / "task_queue" / JOURNAL_FILE


def read_accounting(folder: Path) -> RunAccounting:
    """Audit a run: of a folder, live or stopped, or of a cluster.

    Raises:
        NotFoundError: the run ended before it wrote journal and ledger.
        CorruptionError: one of them cannot be read.
        StaleFolderError: one of them was written by an incompatible version.
        UnavailableError: a service of the cluster does not answer.
    """
    record = read_record(folder)
    # The learner first: what it counts was committed before, or is left out.
    if record.cluster:
        learner, (ledger, in_ledger), (journal, admitted) = asyncio.run(_ask(record))
    else:
        learner = sampled_units(checkpoints_path(folder))
        at = None if learner is None else learner.version
        ledger, in_ledger = _read_file(record, ledger_path(folder), partial(reading.moment, at=at))
        journal, admitted = _read_file(record, journal_path(folder), read_journal_moment)
    audit = reconcile(
        journal,
        ledger,
        unknown=len(in_ledger - admitted),
        awaiting=len(admitted - in_ledger),
        learner=learner,
    )
    return RunAccounting(journal=journal, ledger=ledger, audit=audit)


def verify_ledger(folder: Path, *, head: str = "") -> Verification:
    """Hold a run's ledger, and the payloads still on disk, against its hash chain; ``head``: see ``verifying.verify``.

    Raises:
        NotFoundError: the run ended before it wrote a ledger.
        CorruptionError: it cannot be read.
        StaleFolderError: it was written by an incompatible version.
        UnavailableError: the store of the cluster does not answer.
    """
    record = read_record(folder)
    if record.cluster:
        return asyncio.run(_ask_to_verify(record, head))
    return verify(ledger_path(folder), head=head)


async def _ask_to_verify(record: RunRecord, head: str) -> Verification:
    async with channel_to(record, "trajectory_store") as channel:
        return await TrajectoryStoreClient(channel).verify_ledger(head=head)


def accounting_or_error(folder: Path) -> RunAccounting | TidegateError:
    """``read_accounting``, or why there is none."""
    try:
        return read_accounting(folder)
    except TidegateError as error:
        return error


async def _ask(
    record: RunRecord,
) -> tuple[LearnerTotals | None, tuple[LedgerTotals, set[str]], tuple[JournalTotals, set[str]]]:
    learner: LearnerTotals | None = None
    with contextlib.suppress(UnavailableError):  # without it that entry is not compared
        async with channel_to(record, "learner") as channel:
            learner = (await LearnerClient(channel).progress()).drawn
    async with channel_to(record, "trajectory_store") as store, channel_to(record, "task_queue") as queue:
        at = None if learner is None else learner.version
        ledger = await TrajectoryStoreClient(store).read_ledger(at=at)
        return learner, ledger, await TaskQueueClient(queue).read_journal()


def _read_file(
    record: RunRecord, path: Path, moment: Callable[[Path], Iterator[TotalsT | list[TrajectoryId]]]
) -> tuple[TotalsT, set[str]]:
    if not path.is_file():
        raise NotFoundError(
            f"Run {record.run_id} has no {path.name} yet",
            why="its services ended before they wrote one",
            fix="see logs/ in the run folder",
        )
    totals, *lists = moment(path)
    assert not isinstance(totals, list), "the totals come first"
    return totals, {trajectory_id for some in lists if isinstance(some, list) for trajectory_id in some}
