"""Uses in the ledger: one blob an update, folded into counts when a checkpoint makes the update safe.

The first use of a trajectory makes its row trained, as without replay (``batches``, the table ``uses``). Every use, the
first one too, is in the blob of its update: the ids of the units that the batch held, in the row of the batch. Which
uses count is decided as for rows (``core.replay``): an update survives where its step is below the bound of its
lineage.

At a checkpoint the updates that every restore keeps are folded: their blobs become counts by trajectory, lineage and
part, and the batches keep their number of samples. Two parts a lineage: the updates that a checkpoint holds (``KEPT``),
and, once the lineage is closed, those after the step it was left at (``LEFT``), which only a learner that comes back
from an abandoned branch makes count again. A restore therefore adds and leaves out whole parts, and blobs are bounded
by the steps between two checkpoints. A part that would have to be divided counts whole, so that no unit is used too
often; the audit finds the difference. Counts of evicted trajectories are reduced to their sum.

Everything runs in the caller's transaction.
"""

import sqlite3
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from tidegate.core.audit import ReplayTotals
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.replay import OPEN_END, surviving_steps
from tidegate.core.staleness import LineageTree
from tidegate.trajectory_store.counts import add_to_counter, read_counter
from tidegate.trajectory_store.hash_chain import note, units_note
from tidegate.trajectory_store.replay.uses import (
    count_by_trajectory,
    decode_counts,
    decode_units,
    encode_counts,
    encode_units,
)
from tidegate.wire.clients.trajectory_store import ConsumedBatch

UNFOLDED, KEPT, LEFT = 0, 1, 2
_UNITS, _USES_MAX = "replay_units", "replay_uses_max"


def note_settings(db: sqlite3.Connection, *, units: int, uses_max: int) -> None:
    """Remember what an audit needs: units of a trajectory, and the loosest limit that the run ever had (0: none)."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (_USES_MAX,)).fetchone()
    before = int(row[0]) if row else uses_max
    loosest = 0 if 0 in (before, uses_max) else max(before, uses_max)
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_UNITS, str(units)))
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_USES_MAX, str(loosest)))


def units_of_ledger(db: sqlite3.Connection) -> int | None:
    """Units of a trajectory, as ``note_settings`` wrote them; None for a run without replay."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (_UNITS,)).fetchone()
    return int(row[0]) if row else None


class Survival:
    """Which updates are part of the policy that is trained."""

    def __init__(self, db: sqlite3.Connection, tree: LineageTree, head: PolicyVersion | None = None) -> None:
        """``head``: the policy; the newest lineage by default."""
        if head is None and tree.lineages:
            head = PolicyVersion(lineage=list(tree.lineages)[-1], step=OPEN_END)
        self.steps: Mapping[LineageName, int] = {} if head is None else surviving_steps(head, tree)
        # Where the part LEFT of each lineage begins.
        self._left_from: dict[str, int] = dict(
            db.execute(
                "SELECT lineage, min(step) FROM batches WHERE state = 'committed' AND folded = ? GROUP BY lineage",
                (LEFT,),
            )
        )

    def bound(self, lineage: str) -> int:
        """The step below which updates of a lineage survive."""
        return self.steps.get(LineageName(lineage), 0)

    def keeps(self, lineage: str, part: int) -> bool:
        """Whether the folded updates of a part survive."""
        if part == KEPT:
            return self.bound(lineage) > 0
        return self.bound(lineage) > self._left_from.get(lineage, OPEN_END)


def surviving_uses(
    db: sqlite3.Connection, survival: Survival, *, units: int, seqs: Collection[int] | None = None
) -> dict[int, NDArray[np.uint32]]:
    """The uses of each unit by trajectory, from blobs and folded counts; ``seqs``: of these trajectories alone."""
    found = count_by_trajectory(_unfolded(db, survival), units=units)
    for seq, lineage, part, counts in db.execute(
        "SELECT seq, lineage, part, counts FROM folded_uses WHERE counts IS NOT NULL"
    ):
        if survival.keeps(lineage, part) and (seqs is None or seq in seqs):
            known = found.get(seq)
            more = decode_counts(counts, units=units)
            found[seq] = more if known is None else known + more
    return found if seqs is None else {seq: counts for seq, counts in found.items() if seq in seqs}


def uses_of(db: sqlite3.Connection, tree: LineageTree, trajectory_id: str) -> int | None:
    """Uses of one trajectory's units by the updates that survive; None for a run without replay."""
    units = units_of_ledger(db)
    row = db.execute("SELECT seq FROM trajectories WHERE trajectory_id = ?", (trajectory_id,)).fetchone()
    if units is None or row is None:
        return None
    (seq,) = row
    survival = Survival(db, tree)
    in_blobs = sum(int(np.count_nonzero(ids // units == seq)) for ids in _unfolded(db, survival))
    return in_blobs + sum(
        total
        for lineage, part, total in db.execute(
            "SELECT lineage, part, total FROM folded_uses WHERE seq = ?", (seq,)
        )
        if survival.keeps(lineage, part)
    )


def _unfolded(db: sqlite3.Connection, survival: Survival) -> list[NDArray[np.int64]]:
    return [
        decode_units(units)
        for lineage, step, units in db.execute(
            "SELECT lineage, step, units FROM batches WHERE units IS NOT NULL AND state = 'committed'"
        )
        if step < survival.bound(lineage)
    ]


def samples_of(db: sqlite3.Connection, survival: Survival) -> int:
    """Samples of all surviving updates, from the rows of their batches."""
    return sum(
        count
        for lineage, bound in survival.steps.items()
        for (count,) in db.execute(
            "SELECT coalesce(sum(num_samples), 0) FROM batches"
            " WHERE lineage = ? AND step < ? AND state = 'committed'",
            (lineage, bound),
        )
    )


def fold(
    db: sqlite3.Connection, tree: LineageTree, *, safe: PolicyVersion, resident: Collection[int], units: int
) -> None:
    """A checkpoint holds the updates up to ``safe``, and no restore goes back before it.

    ``resident``: trajectories whose units may still be used.
    """
    survival = Survival(db, tree)
    kept_below = surviving_steps(safe, tree)
    for lineage in tree.lineages:
        bound = survival.bound(lineage)
        _fold_part(db, lineage, KEPT, 0, min(bound, kept_below.get(lineage, 0)), units=units)
        # The newest lineage has no bound, so that nothing of it is left.
        _fold_part(db, lineage, LEFT, bound, OPEN_END, units=units)
    _reduce_evicted(db, Survival(db, tree), resident=resident, units=units)


def _fold_part(
    db: sqlite3.Connection, lineage: LineageName, part: int, start: int, stop: int, *, units: int
) -> None:
    rows = db.execute(
        "SELECT number, units FROM batches"
        " WHERE lineage = ? AND step >= ? AND step < ? AND units IS NOT NULL AND state = 'committed'",
        (lineage, start, stop),
    ).fetchall()
    for seq, counts in count_by_trajectory((decode_units(blob) for _, blob in rows), units=units).items():
        found = db.execute(
            "SELECT total, counts FROM folded_uses WHERE seq = ? AND lineage = ? AND part = ?",
            (seq, lineage, part),
        ).fetchone()
        total = int(counts.sum())
        if found is not None:
            total += found[0]
            if found[1] is not None:
                counts = counts + decode_counts(found[1], units=units)
        db.execute(
            "INSERT OR REPLACE INTO folded_uses (seq, lineage, part, total, counts) VALUES (?, ?, ?, ?, ?)",
            (seq, lineage, part, total, encode_counts(counts)),
        )
    db.executemany(
        "UPDATE batches SET units = NULL, folded = ? WHERE number = ?", ((part, number) for number, _ in rows)
    )


def _reduce_evicted(
    db: sqlite3.Connection, survival: Survival, *, resident: Collection[int], units: int
) -> None:
    """Trajectories that can never be used again keep the sum of their uses, once no blob names them any more."""
    named = {
        seq
        for (blob,) in db.execute("SELECT units FROM batches WHERE units IS NOT NULL")
        for seq in np.unique(decode_units(blob) // units).tolist()
    }
    gone = [
        seq
        for (seq,) in db.execute("SELECT DISTINCT seq FROM folded_uses WHERE counts IS NOT NULL")
        if seq not in resident and seq not in named
    ]
    if not gone:
        return
    uses_max = _uses_max(db)
    if uses_max:
        uses = surviving_uses(db, survival, units=units, seqs=set(gone))
        add_to_counter(db, "replay_overused", _num_over(uses, uses_max))
    db.executemany("UPDATE folded_uses SET counts = NULL WHERE seq = ?", ((seq,) for seq in gone))


def write_consumed_units(db: sqlite3.Connection, batch: ConsumedBatch) -> None:
    """A checkpoint holds an update whose commit may never have arrived: its units, if the ledger lacks them."""
    units = units_of_ledger(db)
    assert units is not None, "only a store that replays gives out samples"
    ids = np.array(
        [
            seq * units + place
            for trajectory_id, places in batch.units.items()
            for (seq,) in db.execute("SELECT seq FROM trajectories WHERE trajectory_id = ?", (trajectory_id,))
            for place in places
        ],
        np.int64,
    )
    db.execute(
        "UPDATE batches SET max_lag = max(max_lag, ?) WHERE batch_id = ?", (batch.max_lag, batch.batch_id)
    )
    db.execute(
        "UPDATE batches SET units = ?, num_samples = ? WHERE batch_id = ? AND folded = ? AND units IS NULL",
        (encode_units(ids), len(ids), batch.batch_id, UNFOLDED),
    )
    column, max_lag = db.execute(
        "SELECT units, max_lag FROM batches WHERE batch_id = ?", (batch.batch_id,)
    ).fetchone()
    if column is not None:
        note(db, units_note(batch.batch_id, batch.version, column, max_lag=max_lag))


def recount(
    db: sqlite3.Connection, tree: LineageTree, *, at: PolicyVersion | None = None
) -> ReplayTotals | None:
    """What an audit asks, counted from every blob and count; None for a run without replay.

    ``at``: a version for which the learner's own total is known.
    """
    units = units_of_ledger(db)
    if units is None:
        return None
    survival = Survival(db, tree)
    uses_max = _uses_max(db)
    over = _num_over(surviving_uses(db, survival, units=units), uses_max) if uses_max else 0
    in_blobs = sum(len(ids) for ids in _unfolded(db, survival))
    folded = sum(
        total
        for lineage, part, total in db.execute(
            "SELECT lineage, part, sum(total) FROM folded_uses GROUP BY 1, 2"
        )
        if survival.keeps(lineage, part)
    )
    (num_lost,) = db.execute(
        "SELECT count(*) FROM batches"
        " WHERE state = 'committed' AND num_samples > 0 AND units IS NULL AND folded = ?",
        (UNFOLDED,),
    ).fetchone()
    return ReplayTotals(
        inserted=read_counter(db, "replay_inserted"),
        sampled=samples_of(db, survival),
        recounted=in_blobs + folded,
        sampled_at=None if at is None else samples_of(db, Survival(db, tree, at)),
        lost_updates=num_lost,
        overused=over + read_counter(db, "replay_overused"),
        uses_max=uses_max,
        torn=read_counter(db, "replay_torn"),
        priorities_refused=read_counter(db, "replay_refused"),
        priorities_ignored=read_counter(db, "replay_ignored"),
    )


def _uses_max(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (_USES_MAX,)).fetchone()
    return int(row[0]) if row else 0


def _num_over(uses: Mapping[int, NDArray[np.uint32]], uses_max: int) -> int:
    return sum(int(np.count_nonzero(counts > uses_max)) for counts in uses.values())
