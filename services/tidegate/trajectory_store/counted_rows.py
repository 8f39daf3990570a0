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
from typing import Literal, TypeAlias

import msgspec

from tidegate.trajectory_store.folded_ids import read_folded
from tidegate.trajectory_store.hash_chain import FoldedCount

_KEY = "counted_rows"
# Below it, counting costs less than noting; above it, the event loop would stand still.
ROWS_MIN, ROWS_MAX = 5_000, 20_000

_Kind: TypeAlias = tuple[str, str, int]


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
    span = (before.through, through)
    max_lag = max(before.max_lag, max_lag_of(db, span))
    _write(db, CountedRows(through, with_rows(db, before.counts, span), max_lag))


def shrink(db: sqlite3.Connection, seqs: Iterable[int]) -> None:
    """Let nothing from the first of these rows on count as counted: the caller is about to change them."""
    before = read_counted(db)
    through = min(seqs, default=before.through + 1) - 1
    if through < before.through:
        left = with_rows(db, before.counts, (through, before.through), sign=-1)
        _write(db, CountedRows(through, left, before.max_lag))


def fold_away(db: sqlite3.Connection, *, through: int) -> None:
    """The rows up to this one are about to be deleted, and are counted as folded ones."""
    before = read_counted(db)
    left = with_rows(db, before.counts, (0, min(through, before.through)), sign=-1)
    _write(db, CountedRows(max(through, before.through), left, before.max_lag))


def with_rows(
    db: sqlite3.Connection, counts: Iterable[FoldedCount], span: tuple[int, int], *, sign: Literal[1, -1] = 1
) -> tuple[FoldedCount, ...]:
    """``counts`` with the rows behind the first of ``span`` up to the last, or (``sign`` -1) without them."""
    rows, accepted = Counter[_Kind](), Counter[_Kind]()
    for count in counts:
        kind = count.state, count.reason, count.lag
        rows[kind], accepted[kind] = count.num_rows, count.num_accepted
    for state, reason, lag, num_rows, num_accepted in db.execute(
        "SELECT state, reason, coalesce(lag, 0), count(*), count(frame_id) FROM trajectories"
        " WHERE seq > ? AND seq <= ? GROUP BY 1, 2, 3",
        span,
    ):
        rows[state, reason, lag] += sign * num_rows
        accepted[state, reason, lag] += sign * num_accepted
    return tuple(FoldedCount(*kind, rows[kind], accepted[kind]) for kind in sorted(rows) if rows[kind])


def max_lag_of(db: sqlite3.Connection, span: tuple[int, int]) -> int:
    """The largest lag of the uses of these rows; 0 without any."""
    found = db.execute("SELECT coalesce(max(lag), 0) FROM uses WHERE seq > ? AND seq <= ?", span).fetchone()
    return found[0]


def _beside(db: sqlite3.Connection) -> tuple[int, int]:
    (num_lineages,) = db.execute("SELECT count(*) FROM lineages").fetchone()
    return num_lineages, read_folded(db).through_seq


def _write(db: sqlite3.Connection, counted: CountedRows) -> None:
    num_lineages, num_folded = _beside(db)
    counted = msgspec.structs.replace(counted, num_lineages=num_lineages, num_folded=num_folded)
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_KEY, msgspec.json.encode(counted).decode()))
