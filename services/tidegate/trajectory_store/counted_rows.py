"""The counted rows: the first part of the ledger, in which every row has ended, counted once.

A start of the store, and a learner that opens a lineage, count only the rows behind it, so that neither takes longer
the longer a run lasts. It is kept in ``meta``, in the transaction that makes it true: it grows when enough rows have
ended, and shrinks before a restore changes one of its rows. Audits do not read it. Folded rows are not in it any more.

An earlier version of this program, to which a run may have been rolled back, knows nothing of it. What it could change
comes with another lineage or with another fold, so what was noted beside others is forgotten.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable

import msgspec

from tidegate.trajectory_store.folded_ids import read_folded
from tidegate.trajectory_store.hash_chain import FoldedCount

_KEY = "counted_rows"
# Below it, counting costs less than noting; above it, the event loop would stand still.
ROWS_MIN, ROWS_MAX = 5_000, 20_000

_Counts = Counter[tuple[str, str, int]]


class CountedRows(msgspec.Struct, frozen=True, array_like=True):
    """``through``: the last of them. ``max_lag``: the largest lag of their uses, and of earlier ones.

    ``num_lineages``, ``num_folded``: of the ledger when this was noted.
    """

    through: int = 0
    counts: tuple[FoldedCount, ...] = ()
    max_lag: int = 0
    num_lineages: int = 0
    num_folded: int = 0


NO_ROWS = CountedRows()
_decode = msgspec.json.Decoder(CountedRows).decode


def read_counted(db: sqlite3.Connection) -> CountedRows:
    """The counted rows; none in a ledger that never had any."""
    found = db.execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
    return _decode(found[0]) if found else NO_ROWS


def forget_if_changed(db: sqlite3.Connection) -> None:
    """When the ledger is opened: forget what another version of this program may have made wrong."""
    found = read_counted(db)
    if (found.num_lineages, found.num_folded) != _beside(db):
        db.execute("DELETE FROM meta WHERE key = ?", (_KEY,))


def confirm(db: sqlite3.Connection) -> None:
    """A lineage was opened, and every row that it changed is counted no more."""
    _write(db, read_counted(db))


def grow(db: sqlite3.Connection, *, last: int) -> None:
    """Count rows that have ended, if enough have. ``last``: the newest row."""
    before = read_counted(db)
    if last - before.through < ROWS_MIN:
        return
    first_open = db.execute(
        "SELECT seq FROM trajectories WHERE seq > ? AND state IN ('available', 'leased') ORDER BY seq LIMIT 1",
        (before.through,),
    ).fetchone()
    through = min(before.through + ROWS_MAX, last if first_open is None else first_open[0] - 1)
    if through - before.through < ROWS_MIN:
        return
    rows, accepted = _count(db, before.through, through)
    for count in before.counts:
        rows[_kind(count)] += count.num_rows
        accepted[_kind(count)] += count.num_accepted
    (max_lag,) = db.execute(
        "SELECT coalesce(max(lag), 0) FROM uses WHERE seq > ? AND seq <= ?", (before.through, through)
    ).fetchone()
    _write(db, CountedRows(through, _counts_of(rows, accepted), max(before.max_lag, max_lag)))


def shrink(db: sqlite3.Connection, seqs: Iterable[int]) -> None:
    """Let nothing from the first of these rows on count as counted: the caller is about to change them."""
    before = read_counted(db)
    through = min(seqs, default=before.through + 1) - 1
    if through < before.through:
        _take_away(db, before, (through, before.through), through=through)


def fold_away(db: sqlite3.Connection, *, through: int) -> None:
    """The rows up to this one are about to be deleted, and are counted as folded ones."""
    before = read_counted(db)
    last = min(through, before.through)
    _take_away(db, before, (0, last), through=max(through, before.through))


def _take_away(db: sqlite3.Connection, before: CountedRows, span: tuple[int, int], *, through: int) -> None:
    gone, not_accepted = _count(db, *span)
    rows: _Counts = Counter({_kind(count): count.num_rows for count in before.counts})
    accepted: _Counts = Counter({_kind(count): count.num_accepted for count in before.counts})
    rows.subtract(gone)
    accepted.subtract(not_accepted)
    _write(db, CountedRows(through, _counts_of(rows, accepted), before.max_lag))


def _count(db: sqlite3.Connection, after: int, through: int) -> tuple[_Counts, _Counts]:
    """Rows behind ``after`` up to ``through``, and those of them that had a payload, by how they ended."""
    rows, accepted = _Counts(), _Counts()
    for state, reason, lag, num_rows, num_accepted in db.execute(
        "SELECT state, reason, coalesce(lag, 0), count(*), count(frame_id) FROM trajectories"
        " WHERE seq > ? AND seq <= ? GROUP BY 1, 2, 3",
        (after, through),
    ):
        rows[state, reason, lag] = num_rows
        accepted[state, reason, lag] = num_accepted
    return rows, accepted


def _kind(count: FoldedCount) -> tuple[str, str, int]:
    return count.state, count.reason, count.lag


def _counts_of(rows: _Counts, accepted: _Counts) -> tuple[FoldedCount, ...]:
    return tuple(FoldedCount(*kind, rows[kind], accepted[kind]) for kind in sorted(rows) if rows[kind])


def _beside(db: sqlite3.Connection) -> tuple[int, int]:
    (num_lineages,) = db.execute("SELECT count(*) FROM lineages").fetchone()
    return num_lineages, read_folded(db).through_seq


def _write(db: sqlite3.Connection, counted: CountedRows) -> None:
    num_lineages, num_folded = _beside(db)
    counted = msgspec.structs.replace(counted, num_lineages=num_lineages, num_folded=num_folded)
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_KEY, msgspec.json.encode(counted).decode()))
