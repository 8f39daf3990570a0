"""The log of outcomes: every change of a trajectory's state, in ledger order, read by cursor.

The log is bounded, so a reader may ask for what was pruned, or, after the ledger lost its last transactions to a power
cut, for what no longer exists. Either way it is given the present state of every row instead, in pages, under negative
cursors that it passes back like any other; then it continues in the log from where that began. Outcomes are therefore
absolute ("this trajectory is trained"), and a reader that applies each one as it comes ends up right.
"""

import sqlite3
from collections.abc import Iterable

from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.trajectory_store.hash_chain import runs_of
from tidegate.trajectory_store.rows import version_of
from tidegate.wire.clients.trajectory_store import Outcome

# The log may exceed its bound by one part in this many before it is pruned, so that pruning is rare.
PRUNE_SLACK = 20
OUTCOMES_PER_READ_MAX = 4_096
# A negative cursor is -(start << 31 | seq): the place in the log to go on from, and the last row that was given.
_SEQ_BITS = 31
# Rows that follow each other come into a state together and share an entry; a page exceeds its limit by less than this.
ENTRY_ROWS_MAX = 64

_OUTCOME_COLUMNS = "t.trajectory_id, t.curriculum_bin, t.reward, t.length_tokens"


def append_outcomes(
    db: sqlite3.Connection,
    seqs: Iterable[int],
    state: str,
    *,
    reason: str = "",
    version: PolicyVersion | None = None,
) -> None:
    """Note that rows came into a state; part of the transaction that puts them there."""
    lineage, step = (version.lineage, version.step) if version else (None, None)
    db.executemany(
        "INSERT INTO outcomes (seq, num_rows, state, reason, trained_lineage, trained_step)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [
            (seq, num_rows, state, reason, lineage, step)
            for seq, num_rows in runs_of(seqs, rows_max=ENTRY_ROWS_MAX)
        ],
    )


def read_outcomes(db: sqlite3.Connection, cursor: int, *, limit: int) -> tuple[list[Outcome], int]:
    """Outcomes after ``cursor``, about ``limit`` of them, and the cursor to ask with next."""
    limit = max(1, min(limit, OUTCOMES_PER_READ_MAX))
    if cursor < 0:
        start, seq = divmod(-cursor, 1 << _SEQ_BITS)
        return _present_states(db, start=start, after_seq=seq, limit=limit)
    first, last = _bounds(db)
    if cursor > last or cursor < first - 1:
        return _present_states(db, start=last, after_seq=0, limit=limit)
    last = _page_end(db, cursor, limit=limit)
    rows = db.execute(
        f"SELECT o.state, o.reason, o.trained_lineage, o.trained_step, {_OUTCOME_COLUMNS}"
        " FROM outcomes o CROSS JOIN trajectories t ON t.seq >= o.seq AND t.seq < o.seq + o.num_rows"
        " WHERE o.cursor > ? AND o.cursor <= ? ORDER BY o.cursor, t.seq",
        (cursor, last),
    ).fetchall()
    outcomes = [
        Outcome(
            trajectory_id=TrajectoryId(trajectory_id),
            state=state,
            reason=reason,
            curriculum_bin=curriculum_bin,
            reward=reward,
            length_tokens=length_tokens,
            trained_at=version_of(lineage, step),
        )
        for state, reason, lineage, step, trajectory_id, curriculum_bin, reward, length_tokens in rows
    ]
    return outcomes, last


def _page_end(db: sqlite3.Connection, cursor: int, *, limit: int) -> int:
    """The entry that fills a page after ``cursor``, or the last one."""
    num_rows, last = 0, cursor
    entries = db.execute(
        "SELECT cursor, num_rows FROM outcomes WHERE cursor > ? ORDER BY cursor LIMIT ?", (cursor, limit)
    )
    for entry, rows_of_entry in entries:
        num_rows, last = num_rows + rows_of_entry, entry
        if num_rows >= limit:
            break
    return last


def prune_outcomes(db: sqlite3.Connection, *, outcomes_max: int) -> int:
    """Forget the oldest outcomes beyond the bound; returns how many."""
    first, last = _bounds(db)
    if last - first + 1 <= outcomes_max + outcomes_max // PRUNE_SLACK:
        return 0
    return db.execute("DELETE FROM outcomes WHERE cursor <= ?", (last - outcomes_max,)).rowcount


def _bounds(db: sqlite3.Connection) -> tuple[int, int]:
    """The first cursor that is kept and the last; (1, 0) for an empty log."""
    first, last = db.execute(
        "SELECT (SELECT min(cursor) FROM outcomes), (SELECT max(cursor) FROM outcomes)"
    ).fetchone()
    return first or 1, last or 0


def _present_states(
    db: sqlite3.Connection, *, start: int, after_seq: int, limit: int
) -> tuple[list[Outcome], int]:
    rows = db.execute(
        f"SELECT t.seq, t.state, t.reason, t.num_revivals, t.trained_lineage, t.trained_step, {_OUTCOME_COLUMNS}"
        " FROM trajectories t WHERE t.seq > ? ORDER BY t.seq LIMIT ?",
        (after_seq, limit),
    ).fetchall()
    outcomes = [
        Outcome(
            trajectory_id=TrajectoryId(trajectory_id),
            state=_present(state, num_revivals),
            reason=reason,
            curriculum_bin=curriculum_bin,
            reward=reward,
            length_tokens=length_tokens,
            trained_at=version_of(lineage, step),
        )
        for _, state, reason, num_revivals, lineage, step, trajectory_id, curriculum_bin, reward, length_tokens in rows
    ]
    if len(rows) < limit:
        return outcomes, start
    return outcomes, -(start << _SEQ_BITS | rows[-1][0])


def _present(state: str, num_revivals: int) -> str:
    if state in ("trained", "dropped"):
        return state
    return "available" if num_revivals else "accepted"
