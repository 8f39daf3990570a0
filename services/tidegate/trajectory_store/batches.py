"""Batches in the ledger's file: leased, then committed or released. All of it runs in the caller's transaction."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from tidegate.core.batching import Drop
from tidegate.core.errors import ConflictError, NotFoundError, RecordError
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import DROP_REASONS
from tidegate.core.staleness import Fresh
from tidegate.trajectory_store import budgets, counted_rows, counts
from tidegate.trajectory_store.hash_chain import DroppedNote, TrainedNote, note, runs_of, units_note
from tidegate.trajectory_store.outcome_log import append_outcomes
from tidegate.trajectory_store.replay.uses import num_units
from tidegate.trajectory_store.rows import DETAIL_CHARACTERS_MAX
from tidegate.trajectory_store.state import BatchLease
from tidegate.wire.bounds import STEP_MAX
from tidegate.wire.clients.trajectory_store import Consumption, Dropped

BACK_TO_AVAILABLE = (
    "UPDATE trajectories SET state = 'available', reason = '', detail = '', batch_id = NULL, leased_at_s = NULL,"
    " terminal_at_s = NULL, trained_lineage = NULL, trained_step = NULL, lag = NULL, span = NULL, age_s = NULL"
)


def write_lease(db: sqlite3.Connection, lease: BatchLease, *, number: int, now_s: float) -> None:
    """Available rows go to a learner."""
    db.execute(
        "INSERT INTO batches"
        " (number, batch_id, state, lineage, step, learner_id, leased_at_s, num_samples, units, budget)"
        " VALUES (?, ?, 'leased', ?, ?, ?, ?, ?, ?, ?)",
        (
            number,
            lease.batch_id,
            lease.version.lineage,
            lease.version.step,
            lease.learner_id,
            now_s,
            num_units(lease.units),
            lease.units or None,
            lease.max_lag,
        ),
    )
    db.executemany(
        "UPDATE trajectories SET state = 'leased', batch_id = ?, leased_at_s = ? WHERE seq = ?",
        ((lease.batch_id, now_s, candidate.seq) for candidate in lease.candidates),
    )


def write_commit(
    db: sqlite3.Connection,
    lease: BatchLease,
    *,
    version: PolicyVersion,
    verdicts: Mapping[TrajectoryId, Fresh],
    now_s: float,
    units_lag_max: int = 0,
) -> None:
    """Leased rows were trained at ``version``; ``verdicts`` holds what was measured of each.

    ``units_lag_max``: of a sampled batch, the largest lag of its units.
    """
    budgets.note_committed(db, version, lease.max_lag)
    db.execute(
        "UPDATE batches SET state = 'committed', step = ?, max_lag = ? WHERE batch_id = ?",
        (version.step, units_lag_max, lease.batch_id),
    )
    if lease.units:
        note(db, units_note(lease.batch_id, version, lease.units, max_lag=units_lag_max))
    measured = [(candidate.seq, verdicts[candidate.trajectory_id]) for candidate in lease.candidates]
    counts.add_uses(db, version, measured)
    write_trained(db, version, measured, now_s=now_s, is_use=True)


def write_trained(
    db: sqlite3.Connection,
    version: PolicyVersion,
    measured: Sequence[tuple[int, Fresh]],
    *,
    now_s: float,
    is_use: bool,
) -> None:
    """Rows, whatever their state was, are trained by the update made at ``version``.

    ``is_use``: see ``TrainedNote``.
    """
    if not measured:
        return
    counted_rows.shrink(db, (seq for seq, _ in measured))
    note(
        db,
        TrainedNote(
            lineage=version.lineage,
            step=version.step,
            at_s=now_s,
            is_use=is_use,
            runs=runs_of(seq for seq, _ in measured),
            lags=[verdict.lag for _, verdict in measured],
            spans=[verdict.span for _, verdict in measured],
            ages_s=[verdict.age_s for _, verdict in measured],
        ),
    )
    db.executemany(
        "UPDATE trajectories SET state = 'trained', reason = '', detail = '', trained_lineage = ?, trained_step = ?,"
        " lag = ?, span = ?, age_s = ?, terminal_at_s = ? WHERE seq = ?",
        (
            (version.lineage, version.step, verdict.lag, verdict.span, verdict.age_s, now_s, seq)
            for seq, verdict in measured
        ),
    )
    append_outcomes(db, (seq for seq, _ in measured), "trained", version=version)


def write_drops(db: sqlite3.Connection, drops: Sequence[Drop], *, now_s: float) -> None:
    """Rows end without a gradient."""
    for (reason, detail), alike in groupby(
        drops, key=lambda drop: (drop.reason, drop.detail[:DETAIL_CHARACTERS_MAX])
    ):
        seqs = [drop.candidate.seq for drop in alike]
        note(db, DroppedNote(at_s=now_s, reason=reason, detail=detail, runs=runs_of(seqs)))
        db.executemany(
            "UPDATE trajectories SET state = 'dropped', reason = ?, detail = ?, terminal_at_s = ? WHERE seq = ?",
            ((reason, detail, now_s, seq) for seq in seqs),
        )
        append_outcomes(db, seqs, "dropped", reason=reason)


def write_release(db: sqlite3.Connection, lease: BatchLease, *, expired: bool = False) -> None:
    """A lease ends: its rows are available again, unless they were found to be trained meanwhile.

    ``expired``: it ended without its learner, and is counted.
    """
    db.execute(
        "UPDATE batches SET state = 'released', num_samples = 0, units = NULL WHERE batch_id = ? AND state = 'leased'",
        (lease.batch_id,),
    )
    db.executemany(
        f"{BACK_TO_AVAILABLE} WHERE seq = ? AND state = 'leased'",
        ((candidate.seq,) for candidate in lease.candidates),
    )
    counts.add_to_counter(db, "leases_expired", int(expired))
    if expired:
        _note_expired(db, lease.version)


def _note_expired(db: sqlite3.Connection, version: PolicyVersion) -> None:
    """Keep the last version of a lineage whose lease expired: see ``may_hold_expired``."""
    lineage, step = _expired(db)
    step = max(step, version.step) if lineage == version.lineage else version.step
    db.executemany(
        "INSERT OR REPLACE INTO meta VALUES (?, ?)",
        (("expired_lineage", version.lineage), ("expired_step", str(step))),
    )


def _expired(db: sqlite3.Connection) -> tuple[str, int]:
    """Of which update the last lease expired; of a file that does not have the step, of one that is never made."""
    found = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('expired_lineage', 'expired_step')"))
    return found.get("expired_lineage", ""), int(found.get("expired_step", STEP_MAX))


def may_hold_expired(db: sqlite3.Connection, lineage: LineageName) -> bool:
    """Whether the learner of a lineage may have trained a batch whose lease expired.

    It commits its updates in order, so one of the same version, or a later one, says that this update was another's.
    """
    expired, step = _expired(db)
    if expired != lineage:
        return False
    later = "SELECT 1 FROM batches WHERE lineage = ? AND step >= ? AND state = 'committed' LIMIT 1"
    return db.execute(later, (lineage, step)).fetchone() is None


def write_consumed(
    db: sqlite3.Connection,
    batch_id: str,
    *,
    version: PolicyVersion,
    consumptions: Sequence[Consumption],
    learner_id: str,
    now_s: float,
) -> None:
    """A checkpoint holds an update, so it happened, whatever became of its batch and rows here."""
    budgets.note_consumed(db, batch_id, version)
    db.execute(
        "INSERT INTO batches (batch_id, state, lineage, step, learner_id, leased_at_s)"
        " VALUES (?, 'committed', ?, ?, ?, ?)"
        " ON CONFLICT (batch_id) DO UPDATE SET state = 'committed', lineage = excluded.lineage, step = excluded.step",
        (batch_id, version.lineage, version.step, learner_id, now_s),
    )
    measured: list[tuple[int, Fresh]] = []
    for item in consumptions:
        seq, trained_lineage, trained_step = db.execute(
            "SELECT seq, trained_lineage, trained_step FROM trajectories WHERE trajectory_id = ?",
            (item.trajectory_id,),
        ).fetchone()
        if (trained_lineage, trained_step) != (version.lineage, version.step):
            measured.append((seq, item.verdict))
    counts.add_uses(db, version, measured)
    write_trained(db, version, measured, now_s=now_s, is_use=True)
    db.executemany(
        "UPDATE trajectories SET batch_id = ? WHERE seq = ?", ((batch_id, seq) for seq, _ in measured)
    )


def check_committed(db: sqlite3.Connection, batch_id: str, version: PolicyVersion) -> None:
    """A commit of what is not leased is fine if it is the same commit again.

    Raises:
        ConflictError: the batch was never leased, its lease ended, or it was committed at another version.
    """
    row = db.execute("SELECT state, lineage, step FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
    if row is None:
        raise ConflictError(f"Batch {batch_id} was never leased", fix="lease another batch")
    if row != ("committed", version.lineage, version.step):
        raise ConflictError(
            f"Batch {batch_id} can no longer be committed at {version}",
            why=f"it is {row[0]} at {row[1]}@{row[2]}: a lease ends with its commit, its release, a new lineage, or"
            " trajectory_store.lease_timeout_s without a renewal. Nothing of this commit counts as trained",
            fix="restart the learner from its newest checkpoint; its updates since are of an abandoned branch",
        )


def is_committed(db: sqlite3.Connection, batch_id: str) -> bool:
    """Whether a batch was trained."""
    row = db.execute("SELECT state FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
    return row == ("committed",)


def check_released(db: sqlite3.Connection, batch_id: str) -> None:
    """A release of what is not leased is fine if it was released before.

    Raises:
        NotFoundError: the batch was never leased.
        ConflictError: the batch was committed.
    """
    row = db.execute("SELECT state FROM batches WHERE batch_id = ?", (batch_id,)).fetchone()
    if row is None:
        raise NotFoundError(f"Batch {batch_id} was never leased")
    if row != ("released",):
        raise ConflictError(f"Batch {batch_id} was committed and cannot be released")


def check_reasons(dropped: Iterable[Dropped]) -> None:
    """Check that reasons are known.

    Raises:
        RecordError: one is not of ``DROP_REASONS``.
    """
    for item in dropped:
        if item.reason not in DROP_REASONS:
            raise RecordError(
                f"Trajectory {item.trajectory_id} is dropped for the unknown reason {item.reason!r}",
                fix=f"use one of {', '.join(DROP_REASONS)}",
            )
