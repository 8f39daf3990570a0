"""What the ledger implies, read from it at every start and after every restore."""

import sqlite3
from dataclasses import dataclass

import msgspec

from tidegate.core.batching import Candidate
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.staleness import LineageTree
from tidegate.trajectory_store import counts
from tidegate.trajectory_store.counted_rows import read_counted
from tidegate.trajectory_store.folded_ids import FoldedIds, load_ids, read_folded
from tidegate.trajectory_store.rows import CANDIDATE_COLUMNS, candidate_from_row, tree_of
from tidegate.trajectory_store.state import BatchLease, LiveFrames, Location, Pool, Tally


@dataclass(frozen=True, slots=True)
class LedgerMemory:
    """Lineages, the newest known version, counts, waiting and leased trajectories, and the next free numbers."""

    tree: LineageTree
    head: PolicyVersion | None
    tally: Tally
    pool: Pool
    leases: dict[str, BatchLease]
    frames: LiveFrames
    next_seq: int
    next_frame: int
    next_batch: int
    num_folded: int
    folded: FoldedIds


def load_memory(db: sqlite3.Connection) -> LedgerMemory:
    """Passes over what is not counted; over all rows, of a ledger that never was, about a second for a million rows."""
    tree = load_tree(db)
    counted = read_counted(db)
    pool = Pool()
    leased: dict[str, BatchLease] = {
        batch_id: BatchLease(
            batch_id=batch_id,
            version=PolicyVersion(lineage=LineageName(lineage), step=step),
            learner_id=learner_id,
            candidates=(),
            max_lag=budget,
            units=units or b"",
        )
        for batch_id, lineage, step, learner_id, units, budget in db.execute(
            "SELECT batch_id, lineage, step, learner_id, units, budget FROM batches"
            " WHERE state = 'leased' ORDER BY number"
        )
    }
    members: dict[str, list[Candidate]] = {batch_id: [] for batch_id in leased}
    for state, batch_id, *columns in db.execute(
        f"SELECT state, batch_id, {CANDIDATE_COLUMNS} FROM trajectories"
        " WHERE seq > ? AND state IN ('available', 'leased') ORDER BY seq",
        (counted.through,),
    ):
        candidate = candidate_from_row(columns)
        if state == "available":
            pool.add([candidate])
        else:
            members[batch_id].append(candidate)
    folded = read_folded(db)
    frames = LiveFrames()
    for frame_id, segment, offset, size, num_live in db.execute(
        "SELECT f.frame_id, f.segment, f.offset, f.size, count(*) FROM trajectories t"
        " JOIN frames f USING (frame_id) WHERE t.seq > ? AND t.state IN ('available', 'leased') GROUP BY f.frame_id",
        (counted.through,),
    ):
        frames.add(frame_id, Location(segment, offset, size), num_live=num_live)
    return LedgerMemory(
        tree=tree,
        head=_newest_version(db, tree),
        tally=counts.count_rows(db, counted),
        pool=pool,
        leases={
            batch_id: msgspec.structs.replace(lease, candidates=tuple(members[batch_id]))
            for batch_id, lease in leased.items()
        },
        frames=frames,
        next_seq=max(_next_of(db, "seq", "trajectories"), folded.through_seq + 1),
        next_frame=max(_next_of(db, "frame_id", "frames"), folded.through_frame + 1),
        next_batch=_next_of(db, "number", "batches"),
        num_folded=folded.through_seq,
        folded=load_ids(db),
    )


def load_tree(db: sqlite3.Connection) -> LineageTree:
    """The lineages of the run, in the order they were opened."""
    return tree_of(db.execute("SELECT name, parent, fork_step FROM lineages ORDER BY position").fetchall())


def _next_of(db: sqlite3.Connection, column: str, table: str) -> int:
    (last,) = db.execute(f"SELECT max({column}) FROM {table}").fetchone()
    return (last or 0) + 1


def _newest_version(db: sqlite3.Connection, tree: LineageTree) -> PolicyVersion | None:
    """The open lineage at the newest step in its batches; its fork before the first."""
    if not tree.lineages:
        return None
    lineage = list(tree.lineages.values())[-1]
    (step,) = db.execute(
        "SELECT max(step + (state = 'committed')) FROM batches WHERE lineage = ?1"
        " AND step = (SELECT max(step) FROM batches WHERE lineage = ?1)",
        (lineage.name,),
    ).fetchone()
    return PolicyVersion(lineage=lineage.name, step=max(lineage.fork_step, step or 0))
