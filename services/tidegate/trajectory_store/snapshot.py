"""What a backup and a page copy of the trajectory store: the ledger as of one moment, and no payloads."""

import sqlite3
from collections.abc import Generator
from pathlib import Path

from tidegate.core.errors import ConflictError, NotFoundError, RecordError
from tidegate.core.ids import PolicyVersion, position_of, task_id
from tidegate.core.replay import surviving_steps
from tidegate.runtime.snapshots.files import SnapshotFiles
from tidegate.trajectory_store import schema
from tidegate.trajectory_store.memory import load_tree
from tidegate.wire.snapshots import JournalMoment, LedgerMoment, SnapshotOpened, SnapshotRequest


def ledger_moment(request: SnapshotRequest, files: SnapshotFiles, *, path: Path) -> Generator[SnapshotOpened]:
    """Fix a moment of the ledger that fits the journal's, then copy it.

    Raises:
        ConflictError: the ledger has a trajectory that the journal has not admitted: look at both again.
        RecordError: the request says nothing of checkpoint or journal.
        NotFoundError: there is no ledger yet.
        CorruptionError: it cannot be read.
        NoSpaceError: the disk has too little space for the copy.
    """
    if request.checkpoint is None or request.journal is None:
        raise RecordError("A ledger is copied after checkpoint and journal", why="the request names neither")
    if not path.is_file():
        raise NotFoundError(f"There is no {path}", fix="wait until the run has started")
    with schema.reading(path) as ledger:
        if _is_ahead(ledger, request.journal.next_seq):  # its snapshot begins here
            raise ConflictError(
                "A trajectory arrived that the journal of the backup has not admitted",
                fix="look at both again",
            )
        yield SnapshotOpened(ledger=_moment(ledger, request.checkpoint, request.journal))
        files.add_database(ledger, path)


def add_ledger(files: SnapshotFiles, *, path: Path) -> None:
    """The ledger, for a page; nothing before there is one.

    Raises:
        CorruptionError, NoSpaceError: as ``ledger_moment``.
    """
    if path.is_file():
        with schema.reading(path) as ledger:
            files.add_database(ledger, path)


def _is_ahead(ledger: sqlite3.Connection, next_seq: int) -> bool:
    """Whether a trajectory is of a task from ``next_seq`` on; ids of ten digits are in the order of their numbers."""
    newer = ledger.execute(
        "SELECT trajectory_id FROM trajectories WHERE trajectory_id >= ?", (task_id(next_seq),)
    )
    places = (position_of(name) for (name,) in newer)
    return any(place is not None and place[0] >= next_seq for place in places)


def _moment(ledger: sqlite3.Connection, checkpoint: PolicyVersion, journal: JournalMoment) -> LedgerMoment:
    states = dict(ledger.execute("SELECT state, count(*) FROM trajectories GROUP BY state").fetchall())
    # The journal may not have heard of all that arrived.
    in_flight = sum(
        not ledger.execute("SELECT 1 FROM trajectories WHERE trajectory_id = ?", (name,)).fetchone()
        for name in journal.running
    )
    return LedgerMoment(
        trained=states.get("trained", 0),
        beyond_checkpoint=trained_beyond(ledger, checkpoint)[0],
        waiting=states.get("available", 0) + states.get("leased", 0),
        in_flight=in_flight,
    )


def trained_beyond(ledger: sqlite3.Connection, version: PolicyVersion) -> tuple[int, int]:
    """Trajectories that the ledger has trained and a checkpoint of ``version`` does not hold, and their updates."""
    tree = load_tree(ledger)
    surviving = surviving_steps(version, tree) if version.lineage in tree.lineages else {}
    counts = [
        ledger.execute(
            "SELECT count(*), count(DISTINCT trained_step) FROM trajectories"
            " WHERE trained_lineage = ? AND trained_step >= ?",
            (name, surviving.get(name, 0)),
        ).fetchone()
        for name in tree.lineages
    ]
    return sum(num for num, _ in counts), sum(updates for _, updates in counts)
