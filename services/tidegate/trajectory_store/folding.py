"""Folding: the oldest rows, which nothing can change any more, become counters, a set of ids and a digest.

The rows are always the oldest ones, all up to one place, so that what is left of them is one note (``FoldedNote``) that
each fold replaces. ``docs/decisions/0015-folded-rows.md`` states which rows may be folded, and why the audit is the
same afterwards. A fold is one transaction.
"""

import sqlite3

import msgspec

from tidegate.core.errors import ConflictError
from tidegate.core.ids import LineageName, PolicyVersion, position_of
from tidegate.core.replay import OPEN_END, Use, overused, surviving_steps
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.trajectory_store import batches, budgets, counted_rows, hash_chain
from tidegate.trajectory_store.folded_ids import FoldedIds, digest_of_tasks, folded_among, read_folded
from tidegate.trajectory_store.hash_chain import (
    ArrivedNote,
    BudgetNote,
    FoldedCount,
    FoldedNote,
    LineageNote,
    note,
)
from tidegate.trajectory_store.restore import checkpoint_of
from tidegate.wire.clients.trajectory_store import ConsumedBatch

# Rows a transaction: some tens of milliseconds, in which nothing else is written. A frame is folded whole.
FOLD_ROWS = 2_048
# The newest batches stay, so that a commit whose answer was lost can be repeated.
BATCHES_KEPT = 1_000

_encode = msgspec.msgpack.Encoder().encode


def check_restorable(folded: FoldedNote, lineage: Lineage, tree: LineageTree) -> None:
    """Check that a lineage that is opened keeps every update whose rows were folded.

    Raises:
        ConflictError: it forks before the oldest checkpoint that was kept when rows were folded.
    """
    if not folded.lineage:
        return
    oldest = PolicyVersion(LineageName(folded.lineage), folded.step)
    if not tree.descends(PolicyVersion(lineage.name, OPEN_END), oldest):
        raise ConflictError(
            f"Lineage {lineage.name} forks from {lineage.parent}@{lineage.fork_step}, before {oldest}",
            why="the ledger folded rows that updates before that checkpoint were trained on, as trained for ever",
            fix=f"restore {oldest} or a later checkpoint, or start another run from this one with `tidegate fork`",
        )


def without_folded(batch: ConsumedBatch, ids: FoldedIds, db: sqlite3.Connection) -> ConsumedBatch:
    """What a checkpoint was trained on, without folded trajectories: those are trained already."""
    gone = folded_among(db, ids, [item.trajectory_id for item in batch.consumptions])
    if not gone:
        return batch
    kept = [item for item in batch.consumptions if item.trajectory_id not in gone]
    return msgspec.structs.replace(batch, consumptions=kept)


def fold(
    db: sqlite3.Connection,
    ids: FoldedIds,
    tree: LineageTree,
    *,
    rows_max: int,
    oldest_segment: int,
    read_to: int,
) -> FoldedIds | None:
    """Fold about ``rows_max`` of the oldest rows, inside the caller's transaction; None: the oldest must stay.

    ``oldest_segment``: the first whose payloads are on disk. ``read_to``: the cursor up to which outcomes were read.
    """
    before = read_folded(db)
    checkpoint = checkpoint_of(db)
    # A learner whose lease expired may have trained it, and its checkpoint, from which it is restored, says so.
    if checkpoint is None or batches.may_hold_expired(db, list(tree.lineages)[-1]):
        return None
    # Of outcomes that were pruned before they were read, the rows are all that tells.
    (first_kept,) = db.execute("SELECT coalesce(min(cursor), 1) FROM outcomes").fetchone()
    if read_to < first_kept - 1:
        return None
    through = _last_to_fold(
        db,
        before,
        tree,
        checkpoint,
        rows_max=rows_max,
        oldest_segment=oldest_segment,
        read_to=read_to,
    )
    if through <= before.through_seq:
        return None
    span = (before.through_seq, through)
    (step,) = db.execute(
        "SELECT max(trained_step) FROM trajectories WHERE seq > ? AND seq <= ?", span
    ).fetchone()
    counts, max_lag, trained_twice = _count(db, span, before, surviving_steps(checkpoint, tree))
    ids, num_ids, ids_digest = _write_ids(db, span, ids, before)
    over_budget, unnoted = budgets.judge_folding(db, span)
    through_entry, entry_digest, lineages, noted = _remove_entries(db, before, through)
    frame_id, segment = db.execute(
        "SELECT frame_id, segment FROM frames WHERE frame_id ="
        " (SELECT max(frame_id) FROM trajectories WHERE seq > ? AND seq <= ?)",
        span,
    ).fetchone() or (before.through_frame, before.through_segment)
    after = FoldedNote(
        through_seq=through,
        through_frame=frame_id,
        through_segment=segment,
        through_entry=through_entry,
        entry_digest=entry_digest,
        lineage=checkpoint.lineage,
        step=checkpoint.step,
        through_step=before.through_step if step is None else max(before.through_step, step),
        counts=counts,
        max_lag=max_lag,
        trained_twice=trained_twice,
        tasks_digest=digest_of_tasks(ids),
        num_ids=num_ids,
        ids_digest=ids_digest,
        lineages=lineages,
        budgets=noted,
        over_budget=before.over_budget + over_budget,
        unnoted=before.unnoted + unnoted,
    )
    note(db, after)
    db.execute("INSERT OR REPLACE INTO folded VALUES (1, ?)", (_encode(after),))
    counted_rows.fold_away(db, through=through)
    db.execute("DELETE FROM uses WHERE seq <= ?", (through,))
    db.execute("DELETE FROM trajectories WHERE seq <= ?", (through,))
    db.execute("DELETE FROM frames WHERE frame_id <= ?", (frame_id,))
    _remove_batches(db)
    return ids


def _last_to_fold(
    db: sqlite3.Connection,
    before: FoldedNote,
    tree: LineageTree,
    checkpoint: PolicyVersion,
    *,
    rows_max: int,
    oldest_segment: int,
    read_to: int,
) -> int:
    """The last row of the longest prefix, of about ``rows_max`` rows, all of which may be folded."""
    first = before.through_seq
    span = (first, _end_of_frame(db, first + rows_max))
    safe = surviving_steps(checkpoint, tree)
    stay = [
        db.execute(
            "SELECT min(seq) FROM trajectories WHERE seq > ? AND seq <= ? AND state NOT IN ('trained', 'dropped')",
            span,
        ).fetchone()[0],
        db.execute(
            "SELECT min(t.seq) FROM trajectories t JOIN frames f USING (frame_id)"
            " WHERE t.seq > ? AND t.seq <= ? AND f.segment >= ?",
            (*span, oldest_segment),
        ).fetchone()[0],
        db.execute("SELECT min(seq) FROM outcomes WHERE cursor > ?", (read_to,)).fetchone()[0],
    ]
    stay += [
        seq
        for lineage, step, seq in db.execute(
            "SELECT trained_lineage, trained_step, min(seq) FROM trajectories"
            " WHERE seq > ? AND seq <= ? AND state = 'trained' GROUP BY trained_lineage, trained_step",
            span,
        )
        if step >= safe.get(lineage, 0)
    ]
    # Updates after the checkpoint may be lost or kept by the next restore; those of other branches are lost for ever.
    names = list(tree.lineages)
    for lineage in names[names.index(checkpoint.lineage) :]:  # parents before children
        if tree.descends(PolicyVersion(lineage, OPEN_END), checkpoint):
            stay += db.execute(
                "SELECT min(seq) FROM uses WHERE seq > ? AND seq <= ? AND lineage = ? AND step >= ?",
                (*span, lineage, safe.get(lineage, 0)),
            ).fetchone()
    last = min([span[1] + 1, *(seq for seq in stay if seq is not None)]) - 1
    return last if last <= first else _start_of_frame(db, last)


def _end_of_frame(db: sqlite3.Connection, seq: int) -> int:
    """The last row of the frame that row ``seq`` lies in; of the last frame, when there are fewer rows."""
    (last,) = db.execute("SELECT max(seq) FROM trajectories").fetchone()
    while seq < (last or 0) and _same_frame(db, seq):
        seq += 1
    return min(seq, last or 0)


def _start_of_frame(db: sqlite3.Connection, seq: int) -> int:
    """The last row up to ``seq`` whose frame has no row after it; before the first one, when there is none."""
    while _same_frame(db, seq):
        seq -= 1
    return seq


def _same_frame(db: sqlite3.Connection, seq: int) -> bool:
    """Whether a row and the next one came in one frame."""
    frames = db.execute("SELECT frame_id FROM trajectories WHERE seq IN (?, ?)", (seq, seq + 1)).fetchall()
    return len(frames) > 1 and frames[0][0] is not None and frames[0] == frames[1]


def _count(
    db: sqlite3.Connection, span: tuple[int, int], before: FoldedNote, safe: dict[LineageName, int]
) -> tuple[tuple[FoldedCount, ...], int, int]:
    again = (
        Use(seq, PolicyVersion(LineageName(lineage), step))
        for seq, lineage, step in db.execute(
            "SELECT seq, lineage, step FROM uses WHERE seq IN"
            " (SELECT seq FROM uses WHERE seq > ? AND seq <= ? GROUP BY seq HAVING count(*) > 1)",
            span,
        )
    )
    counts = counted_rows.with_rows(db, before.counts, span)
    max_lag = max(before.max_lag, counted_rows.max_lag_of(db, span))
    return counts, max_lag, before.trained_twice + overused(again, surviving=safe)


def _write_ids(
    db: sqlite3.Connection, span: tuple[int, int], ids: FoldedIds, before: FoldedNote
) -> tuple[FoldedIds, int, bytes]:
    added: dict[int, int] = {}
    number, digest = before.num_ids, before.ids_digest
    for (name,) in db.execute(
        "SELECT trajectory_id FROM trajectories WHERE seq > ? AND seq <= ? ORDER BY seq", span
    ).fetchall():
        where = position_of(name)
        if where is None:
            number, digest = number + 1, hash_chain.next_id_digest(digest, name)
            db.execute("INSERT INTO folded_ids VALUES (?, ?)", (number, name))
        else:
            task, sample = where
            added[task] = added.get(task, 0) | 1 << sample
    if added:
        ids, change = ids.with_added(added)
        db.execute("DELETE FROM folded_tasks WHERE first BETWEEN ? AND ?", (change.first, change.last))
        db.executemany(
            "INSERT INTO folded_tasks VALUES (?, ?, ?)", [msgspec.structs.astuple(run) for run in change.runs]
        )
    return ids, number, digest


def _remove_entries(
    db: sqlite3.Connection, before: FoldedNote, through: int
) -> tuple[int, bytes, tuple[LineageNote, ...], tuple[BudgetNote, ...]]:
    """Remove the entries before the arrival of the first row that stays: only folded rows are in them.

    What they say of lineages and budgets is kept.
    """
    number, digest = before.through_entry, before.entry_digest
    lineages, noted = list(before.lineages), list(before.budgets)
    for entry in hash_chain.entries(db):
        notes = entry.notes()
        if any(_last_row(each) > through for each in notes):
            break
        number, digest = entry.number, entry.digest
        lineages += [each for each in notes if isinstance(each, LineageNote)]
        noted += [each for each in notes if isinstance(each, BudgetNote)]
    db.execute("DELETE FROM chain WHERE number <= ?", (number,))
    return number, digest, tuple(lineages), tuple(noted)


def _last_row(found: hash_chain.Note) -> int:
    """The last row that a note is about; rows are in no note before that of their arrival."""
    match found:
        case ArrivedNote():
            return found.first_seq + sum(found.num_rows) - 1
        case hash_chain.UnarrivedNote():
            return found.first_seq + len(found.trajectory_ids) - 1
        case FoldedNote():
            return found.through_seq
        case _:
            return 0


def _remove_batches(db: sqlite3.Connection) -> None:
    """Old batches go, but for the newest of each lineage, which says how far it came."""
    db.execute(
        "DELETE FROM batches WHERE state != 'leased' AND number <= (SELECT max(number) FROM batches) - ?"
        " AND number NOT IN (SELECT number FROM (SELECT number, max(step) FROM batches GROUP BY lineage))",
        (BATCHES_KEPT,),
    )
