"""Counting the ledger: by state, by lag, and by gradient uses."""

import sqlite3
from collections.abc import Iterable
from typing import cast

from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import DropReason
from tidegate.core.replay import OPEN_END, Use, overused, surviving_steps
from tidegate.core.staleness import Fresh, LineageTree
from tidegate.trajectory_store.counted_rows import NO_ROWS, CountedRows
from tidegate.trajectory_store.folded_ids import read_folded
from tidegate.trajectory_store.state import Tally

COUNTERS = (
    "duplicates",
    "quarantined",
    "revived",
    "leases_expired",
    "replay_inserted",
    "replay_overused",
    "replay_refused",
    "replay_ignored",
    "replay_torn",
)


def count_rows(db: sqlite3.Connection, counted: CountedRows = NO_ROWS) -> Tally:
    """Every count from the rows themselves, and of folded ones from what is left of them: one pass over the ledger.

    ``counted``: rows that need not be counted again.
    """
    tally = Tally()
    folded = read_folded(db)
    for count in (*folded.counts, *counted.counts):
        tally.accepted += count.num_accepted
        if count.state == "trained":
            tally.trained_by_lag[count.lag] += count.num_rows
        else:
            tally.dropped[cast("DropReason", count.reason)] += count.num_rows
    for state, reason, lag, count, num_accepted in db.execute(
        "SELECT state, reason, lag, count(*), count(frame_id) FROM trajectories WHERE seq > ?"
        " GROUP BY state, reason, lag",
        (counted.through,),
    ):
        tally.accepted += num_accepted
        match state:
            case "available":
                tally.available += count
            case "leased":
                tally.leased += count
            case "trained":
                tally.trained_by_lag[lag or 0] += count
            case _:
                tally.dropped[cast("DropReason", reason)] += count
    # Uses of rows, and of batches that were sampled: later uses have no row of their own.
    (tally.max_lag_trained,) = db.execute(
        "SELECT max((SELECT coalesce(max(lag), 0) FROM uses WHERE seq > ?),"
        " (SELECT coalesce(max(max_lag), 0) FROM batches WHERE max_lag > 0 AND state = 'committed'))",
        (counted.through,),
    ).fetchone()
    tally.max_lag_trained = max(tally.max_lag_trained, folded.max_lag, counted.max_lag)
    counters = dict(db.execute("SELECT key, CAST(value AS INTEGER) FROM meta").fetchall())
    tally.duplicates = counters.get("duplicates", 0)
    tally.quarantined = counters.get("quarantined", 0)
    tally.revived = counters.get("revived", 0)
    tally.leases_expired = counters.get("leases_expired", 0)
    return tally


def add_to_counter(db: sqlite3.Connection, key: str, count: int) -> None:
    """Add to one of ``COUNTERS``, as part of the transaction that it counts."""
    assert key in COUNTERS
    if count:
        db.execute(
            "INSERT INTO meta VALUES (?, ?)"
            " ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + excluded.value AS TEXT)",
            (key, str(count)),
        )


def read_counter(db: sqlite3.Connection, key: str) -> int:
    """One of ``COUNTERS``."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return int(row[0]) if row else 0


def add_uses(db: sqlite3.Connection, version: PolicyVersion, measured: Iterable[tuple[int, Fresh]]) -> None:
    """Note that rows took part in the update made at ``version``; noting it again changes nothing."""
    db.executemany(
        "INSERT OR IGNORE INTO uses (seq, lineage, step, lag, span, age_s, ordinal)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, (SELECT count(*) FROM uses WHERE seq = ?1))",
        (
            (seq, version.lineage, version.step, verdict.lag, verdict.span, verdict.age_s)
            for seq, verdict in measured
        ),
    )


def trained_twice(db: sqlite3.Connection, tree: LineageTree) -> int:
    """Rows with more surviving uses than allowed, among the few that an index lists as used again."""
    return _overused(
        db,
        tree,
        "SELECT seq, lineage, step FROM uses WHERE seq IN (SELECT DISTINCT seq FROM uses WHERE ordinal > 0)",
    )


def recount_trained_twice(db: sqlite3.Connection, tree: LineageTree) -> int:
    """The same from every use, trusting no index: what an audit asks."""
    return _overused(
        db,
        tree,
        "SELECT seq, lineage, step FROM uses WHERE seq IN (SELECT seq FROM uses GROUP BY seq HAVING count(*) > 1)",
    )


def _overused(db: sqlite3.Connection, tree: LineageTree, query: str) -> int:
    folded = read_folded(db).trained_twice
    if not tree.lineages:
        return folded
    newest = list(tree.lineages)[-1]
    uses = (
        Use(seq=seq, version=PolicyVersion(lineage=LineageName(lineage), step=step))
        for seq, lineage, step in db.execute(query)
    )
    return folded + overused(
        uses, surviving=surviving_steps(PolicyVersion(lineage=newest, step=OPEN_END), tree)
    )
