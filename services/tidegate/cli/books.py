"""The two books of a run read side by side: the task queue's journal and the trajectory store's ledger.

Both are opened read-only, beside the services or after them. The ledger is read first: whatever it holds by then was
admitted before, so the journal, read later, must know it.
"""

from pathlib import Path

import msgspec

from tidegate.cli.folder import read_record
from tidegate.core.audit import Audit, JournalTotals, LedgerTotals, reconcile
from tidegate.core.errors import NotFoundError
from tidegate.task_queue.journal import read_journal
from tidegate.task_queue.journal_file import FILE_NAME as JOURNAL_FILE
from tidegate.trajectory_store.counts import count_rows, recount_trained_twice
from tidegate.trajectory_store.memory import load_tree
from tidegate.trajectory_store.schema import LEDGER_FILE, reading


class Books(msgspec.Struct, frozen=True):
    """The totals of both, the verdict about them, and how many trajectories were trained at each lag."""

    journal: JournalTotals
    ledger: LedgerTotals
    audit: Audit


def ledger_path(folder: Path) -> Path:
    """Where the store of a run folder keeps its ledger."""
    return folder / "trajectory_store" / LEDGER_FILE


def journal_path(folder: Path) -> Path:
    """Where the task queue of a run folder keeps its journal."""
    return folder / "task_queue" / JOURNAL_FILE


def read_books(folder: Path) -> Books:
    """Audit a run folder, live or stopped.

    Raises:
        NotFoundError: the run never came so far as to write its books.
        CorruptionError: one of them cannot be read.
        StaleFolderError: one of them was written by an incompatible version.
    """
    record = read_record(folder)
    for path in (ledger_path(folder), journal_path(folder)):
        if not path.is_file():
            raise NotFoundError(
                f"Run {record.run_id} has no {path.name} yet",
                why="its services never came so far as to write one",
                fix="see logs/ in the run folder",
            )
    with reading(ledger_path(folder)) as db:
        ledger = count_rows(db).totals(trained_twice=recount_trained_twice(db, load_tree(db)))
        in_ledger = {
            trajectory_id for (trajectory_id,) in db.execute("SELECT trajectory_id FROM trajectories")
        }
    with read_journal(journal_path(folder)) as reader:
        journal = reader.totals()
        awaiting = sum(1 for trajectory_id in reader.admitted_ids() if trajectory_id not in in_ledger)
    found = journal.admitted - awaiting
    audit = reconcile(
        journal, ledger, unknown=len(in_ledger) - found, awaiting=awaiting, max_lag=record.max_lag_ever
    )
    return Books(journal=journal, ledger=ledger, audit=audit)
