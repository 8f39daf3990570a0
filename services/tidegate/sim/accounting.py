"""The accounting of a run as an auditor reads it: admission journal and trajectory ledger, followed from their files.

No service is asked. The files are read through separate connections, which see what a crash at this moment would
leave behind.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate.core.ids import TrajectoryId, trajectory_at
from tidegate.trajectory_store.outcome_log import read_outcomes

OUTCOMES_PER_READ = 4096
TERMINAL = ("trained", "dropped")


class NewOutcomes(msgspec.Struct, frozen=True):
    """New since the last read: admitted trajectories, and changes of state in ledger order."""

    admitted: list[TrajectoryId]
    outcomes: list[tuple[TrajectoryId, str]]


class Accounting:
    """Trajectories by their state in the two files, updated by ``follow``."""

    def __init__(self, *, journal: Path, ledger: Path) -> None:
        """``journal`` and ``ledger`` may not exist yet."""
        self.journal = journal
        self.ledger = ledger
        self.admitted: set[TrajectoryId] = set()
        self.states: dict[TrajectoryId, str] = {}
        self.reasons: dict[str, int] = {}
        # Admitted and without a row; with a row and not terminal; terminal once and made available again by a restore.
        self.awaiting: set[TrajectoryId] = set()
        self.waiting: set[TrajectoryId] = set()
        self.revived: set[TrajectoryId] = set()
        self.num_revived = 0
        self.unknown: list[TrajectoryId] = []
        self._seq = 0
        self._cursor = 0
        self._open: dict[Path, sqlite3.Connection] = {}

    def follow(self) -> NewOutcomes:
        """Read what is new since the last read."""
        admitted = list(self._admitted())
        self.admitted.update(admitted)
        self.awaiting.update(admitted)
        outcomes = list(self._outcomes())
        for trajectory, state, reason in outcomes:
            self._note(trajectory, state, reason)
        return NewOutcomes(admitted, [(trajectory, state) for trajectory, state, _ in outcomes])

    def _note(self, trajectory: TrajectoryId, state: str, reason: str) -> None:
        if trajectory not in self.admitted:
            self.unknown.append(trajectory)
        self.awaiting.discard(trajectory)
        self.states[trajectory] = state
        if state in TERMINAL:
            self.waiting.discard(trajectory)
            self.revived.discard(trajectory)
        else:
            self.waiting.add(trajectory)
        if state == "available":
            self.revived.add(trajectory)
            self.num_revived += 1
        if state == "dropped":
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def _admitted(self) -> Iterator[TrajectoryId]:
        db = self._connection(self.journal)
        if db is None:
            return
        for seq, sample_index in db.execute(
            "SELECT seq, sample_index FROM trajectories WHERE seq > ? ORDER BY seq, sample_index",
            (self._seq,),
        ).fetchall():
            self._seq = seq
            yield trajectory_at(seq, sample_index)

    def _outcomes(self) -> Iterator[tuple[TrajectoryId, str, str]]:
        db = self._connection(self.ledger)
        if db is None:
            return
        while True:
            outcomes, cursor = read_outcomes(db, self._cursor, limit=OUTCOMES_PER_READ)
            assert cursor >= 0, "the outcome log was pruned past a reader that never pauses"
            for outcome in outcomes:
                yield outcome.trajectory_id, outcome.state, outcome.reason
            self._cursor = cursor
            if not outcomes:
                return

    def unpublished_tasks(self) -> set[str]:
        """Tasks that are in the journal and not yet on a stream."""
        db = self._connection(self.journal)
        if db is None:
            return set()
        return {name for (name,) in db.execute("SELECT task_id FROM tasks WHERE published = 0")}

    def journal_is_current(self) -> bool:
        """Whether the task queue has read every outcome."""
        db = self._connection(self.journal)
        row = None if db is None else db.execute("SELECT value FROM meta WHERE key = 'cursor'").fetchone()
        return row is not None and int(row[0]) == self._cursor

    def close(self) -> None:
        """Close the files."""
        for connection in self._open.values():
            connection.close()

    def _connection(self, path: Path) -> sqlite3.Connection | None:
        known = self._open.get(path)
        if known is None and path.is_file():
            known = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
            if not known.execute("SELECT count(*) FROM sqlite_master WHERE name = 'trajectories'").fetchone()[
                0
            ]:
                known.close()
                return None
            self._open[path] = known
        return known
