"""What happens to rows when a learner opens a lineage, and which payloads a checkpoint makes superfluous.

Opening a lineage that forks at step ``f`` of its parent: (1) batches that the checkpoint holds, but whose commit may
never have arrived, become trained; (2) every lease ends; (3) rows with a use that is part of the fork are trained by
it, even if a restore to an older checkpoint had given them back meanwhile; (4) rows trained by an update that is not
part of the fork (made at ``f`` or later, or in another branch) become available again, subject to I1 when the next
batch is built. What the restored parameters were trained on and what is trained are then the same. All of it is one
transaction of the ledger.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence

from tidegate.core.errors import ConflictError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.replay import OPEN_END, surviving_steps
from tidegate.core.staleness import Fresh, Lineage, LineageTree
from tidegate.trajectory_store import counted_rows, counts
from tidegate.trajectory_store.batches import BACK_TO_AVAILABLE, write_consumed, write_release, write_trained
from tidegate.trajectory_store.consumed_check import check_consumed
from tidegate.trajectory_store.folded_ids import read_folded
from tidegate.trajectory_store.hash_chain import (
    DroppedNote,
    LineageNote,
    RevivedNote,
    UnarrivedNote,
    note,
    runs_of,
)
from tidegate.trajectory_store.outcome_log import append_outcomes
from tidegate.trajectory_store.replay.accounting import write_consumed_units
from tidegate.trajectory_store.rows import INSERT_ROW, never_arrived
from tidegate.trajectory_store.state import BatchLease
from tidegate.wire.clients.trajectory_store import ConsumedBatch, Consumption

SUPERSEDED = "trained in a branch that was lost at a restore; its payload is gone"


def open_lineage(
    db: sqlite3.Connection,
    lineage: Lineage,
    tree: LineageTree,
    *,
    learner_id: str,
    consumed: Sequence[ConsumedBatch],
    leases: Collection[BatchLease],
    segments: Collection[int],
    now_s: float,
) -> int:
    """The whole step, inside the caller's transaction; returns how many rows were revived.

    ``tree`` holds ``lineage`` already; ``segments`` are those whose payloads are still on disk.

    Raises:
        RecordError: a consumed batch cannot be one of this branch.
        ConflictError: a consumed trajectory was trained by another update of this branch, or this branch is to begin
            the run again.
    """
    _check_goes_on(db, lineage)
    check_consumed(db, lineage, consumed, tree)
    write_lineages(db, (lineage,), learner_id=learner_id, now_s=now_s)
    surviving = surviving_steps(PolicyVersion(lineage=lineage.name, step=OPEN_END), tree)
    for batch in consumed:
        _add_forgotten(db, batch, now_s=now_s)
        write_consumed(
            db,
            batch.batch_id,
            version=batch.version,
            consumptions=_first_uses(db, batch, surviving) if batch.units else batch.consumptions,
            learner_id=learner_id,
            now_s=now_s,
        )
        if batch.units:
            write_consumed_units(db, batch)
    for lease in leases:
        write_release(db, lease)
    _reinstate(db, surviving, now_s=now_s)
    num_revived = _revive(db, tree, surviving, segments=segments, now_s=now_s)
    counted_rows.confirm(db)
    return num_revived


def _check_goes_on(db: sqlite3.Connection, lineage: Lineage) -> None:
    """Refuse a learner that lost its checkpoints: all that was trained would be taken back, without a word.

    Before the first one with an update, nothing is lost: the payloads of all updates are still there.
    """
    checkpoint = checkpoint_of(db)
    if lineage.parent is None and checkpoint is not None and checkpoint.step > 0:
        raise ConflictError(
            f"The learner has no checkpoint, and had {checkpoint}: its folder was lost",
            why="from its first policy all updates of the run would be lost",
            fix="put the folder back from a copy or a backup, or begin another run",
        )


def _first_uses(
    db: sqlite3.Connection, batch: ConsumedBatch, surviving: Mapping[LineageName, int]
) -> list[Consumption]:
    """Of a sampled batch the trajectories that no other surviving update made trained: a row is trained once."""
    first: list[Consumption] = []
    for item in batch.consumptions:
        state, lineage, step = db.execute(
            "SELECT state, trained_lineage, trained_step FROM trajectories WHERE trajectory_id = ?",
            (item.trajectory_id,),
        ).fetchone()
        if state != "trained" or step >= surviving.get(lineage, 0):
            first.append(item)
    return first


def write_lineages(
    db: sqlite3.Connection, lineages: Sequence[Lineage], *, learner_id: str, now_s: float
) -> None:
    """Add lineages, in the order of their opening; those that the ledger has stay as they are."""
    for each in lineages:
        added = db.execute(
            "INSERT OR IGNORE INTO lineages (name, parent, fork_step, learner_id, opened_at_s) VALUES (?, ?, ?, ?, ?)",
            (each.name, each.parent, each.fork_step, learner_id, now_s),
        )
        if added.rowcount:
            note(db, LineageNote(each.name, each.parent, each.fork_step))


def _add_forgotten(db: sqlite3.Connection, batch: ConsumedBatch, *, now_s: float) -> None:
    """Rows for what a checkpoint was trained on and the ledger does not know: a redelivery is then a duplicate.

    Only a power cut in ``process`` mode makes it forget.
    """
    (last,) = db.execute(
        "SELECT coalesce(max(seq), ?) FROM trajectories", (read_folded(db).through_seq,)
    ).fetchone()
    measured = [item.trajectory_id for item in batch.consumptions]
    for trajectory_id in (*measured, *(name for name in batch.units if name not in measured)):
        if db.execute("SELECT 1 FROM trajectories WHERE trajectory_id = ?", (trajectory_id,)).fetchone():
            continue
        last += 1
        db.execute(INSERT_ROW, never_arrived(last, trajectory_id, state="leased", now_s=now_s))
        note(db, UnarrivedNote(at_s=now_s, first_seq=last, trajectory_ids=[trajectory_id]))
        if trajectory_id not in measured:
            # An earlier update used it first; which one, the ledger forgot as well.
            unknown = Fresh(lag=0, span=0, age_s=0.0)
            write_trained(db, batch.version, [(last, unknown)], now_s=now_s, is_use=False)


def _reinstate(db: sqlite3.Connection, surviving: Mapping[LineageName, int], *, now_s: float) -> None:
    """Rows that are not trained in the fork, but were used in it, are trained by that use again."""
    found: dict[int, tuple[PolicyVersion, Fresh]] = {}
    # Indexes know these few: given back or dropped by an earlier restore, or used more than once.
    for seq, lineage, step, lag, span, age_s, trained_lineage, trained_step in db.execute(
        "SELECT u.seq, u.lineage, u.step, u.lag, u.span, u.age_s, t.trained_lineage, t.trained_step"
        " FROM uses u JOIN trajectories t USING (seq) WHERE u.seq IN ("
        "SELECT seq FROM trajectories WHERE num_revivals > 0"
        " UNION SELECT seq FROM trajectories WHERE reason = 'superseded'"
        " UNION SELECT seq FROM uses WHERE ordinal > 0)"
    ):
        is_trained = trained_step is not None and trained_step < surviving.get(trained_lineage, 0)
        if not is_trained and step < surviving.get(lineage, 0):
            found[seq] = (PolicyVersion(lineage=lineage, step=step), Fresh(lag, span, age_s))
    for seq, (version, verdict) in found.items():
        write_trained(db, version, [(seq, verdict)], now_s=now_s, is_use=False)


def _revive(
    db: sqlite3.Connection,
    tree: LineageTree,
    surviving: Mapping[LineageName, int],
    *,
    segments: Collection[int],
    now_s: float,
) -> int:
    revived: list[int] = []
    superseded: list[int] = []
    for name in tree.lineages:
        for seq, segment in db.execute(
            "SELECT t.seq, f.segment FROM trajectories t LEFT JOIN frames f USING (frame_id)"
            " WHERE t.trained_lineage = ? AND t.trained_step >= ?",
            (name, surviving.get(name, 0)),
        ):
            (revived if segment in segments else superseded).append(seq)
    counted_rows.shrink(db, (*revived, *superseded))
    db.executemany(
        f"{BACK_TO_AVAILABLE}, num_revivals = num_revivals + 1 WHERE seq = ?", ((seq,) for seq in revived)
    )
    append_outcomes(db, revived, "available")
    if revived:
        note(db, RevivedNote(runs_of(revived)))
    db.executemany(
        "UPDATE trajectories SET state = 'dropped', reason = 'superseded', terminal_at_s = ?, detail = ?,"
        " trained_lineage = NULL, trained_step = NULL, lag = NULL, span = NULL, age_s = NULL WHERE seq = ?",
        ((now_s, SUPERSEDED, seq) for seq in superseded),
    )
    if superseded:
        note(db, DroppedNote(at_s=now_s, reason="superseded", detail=SUPERSEDED, runs=runs_of(superseded)))
    append_outcomes(db, superseded, "dropped", reason="superseded")
    counts.add_to_counter(db, "revived", len(revived))
    return len(revived)


def checkpoint_of(db: sqlite3.Connection) -> PolicyVersion | None:
    """The newest version that a learner reported safe in a checkpoint."""
    found = dict(
        db.execute("SELECT key, value FROM meta WHERE key IN ('checkpoint_lineage', 'checkpoint_step')")
    )
    if not found:
        return None
    return PolicyVersion(lineage=LineageName(found["checkpoint_lineage"]), step=int(found["checkpoint_step"]))


def segments_without_checkpoint(db: sqlite3.Connection, tree: LineageTree) -> set[int]:
    """Segments with a payload that was trained by an update no checkpoint holds: a restore may revive it."""
    checkpoint = checkpoint_of(db)
    safe = surviving_steps(checkpoint, tree) if checkpoint else {}
    return {
        segment
        for name in tree.lineages
        for (segment,) in db.execute(
            "SELECT DISTINCT f.segment FROM trajectories t JOIN frames f USING (frame_id)"
            " WHERE t.trained_lineage = ? AND t.trained_step >= ?",
            (name, safe.get(name, 0)),
        )
    }
