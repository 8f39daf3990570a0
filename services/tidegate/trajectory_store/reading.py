"""Read-only answers from a ledger's file: for the command line and the report, on a live or a stopped run.

Counts come from the rows themselves and use no counter of the live store.
"""

import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec

from tidegate.core.audit import LedgerTotals
from tidegate.core.errors import NotFoundError
from tidegate.core.ids import GroupId, PolicyVersion, RunId, TrajectoryId, task_of
from tidegate.core.records import StageTiming, Trajectory
from tidegate.trajectory_store import counts
from tidegate.trajectory_store.budgets import judge_uses
from tidegate.trajectory_store.folded_ids import folded_among, folded_names, load_ids
from tidegate.trajectory_store.memory import load_tree
from tidegate.trajectory_store.replay.accounting import recount, uses_of
from tidegate.trajectory_store.rows import spans_from, version_of
from tidegate.trajectory_store.schema import LEDGER_FILE, reading
from tidegate.wire.clients.trajectory_store import TrajectoryStatus
from tidegate.wire.frame import decode_provenance

__all__ = ["LEDGER_FILE", "LedgerRow", "ids", "moment", "rows", "status_of", "totals", "trajectory"]

STORE_STAGE = "store.append"
CONSUME_STAGE = "trajectory.consume"
# Ids an answer: well below a megabyte.
IDS_AT_ONCE = 10_000


class LedgerRow(msgspec.Struct, frozen=True):
    """What the report plots of one trajectory. Times are seconds since the epoch; None where it never happened."""

    trajectory_id: TrajectoryId
    state: str
    reason: str
    curriculum_bin: str
    num_steps: int
    length_tokens: int
    reward: float | None
    num_episodes: int
    mean_return: float | None
    oldest_version: PolicyVersion | None
    newest_version: PolicyVersion | None
    trained_at: PolicyVersion | None
    stale_by_versions: int | None
    span: int | None
    age_s: float | None
    started_at_s: float
    finished_at_s: float
    accepted_at_s: float
    leased_at_s: float | None
    terminal_at_s: float | None
    num_revivals: int


def totals(path: Path, *, at: PolicyVersion | None = None) -> LedgerTotals:
    """The right-hand side of the audit, counted from the rows; ``at``: see ``moment``.

    Raises:
        NotFoundError: there is no such ledger.
        StaleFolderError: another version of the schema wrote it.
        CorruptionError: the file cannot be read.
    """
    with reading(path) as db:
        return _totals(db, at)


def moment(path: Path, *, at: PolicyVersion | None = None) -> Generator[LedgerTotals | list[TrajectoryId]]:
    """One consistent moment for an audit: the totals, counted from the rows, then every trajectory id in lists.

    ``at``: the version before which the learner's own total of samples is known, for a run with replay.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: as ``totals``.
    """
    with reading(path) as db:
        yield _totals(db, at)
        found = db.execute("SELECT trajectory_id FROM trajectories")
        while rows_read := found.fetchmany(IDS_AT_ONCE):
            yield [TrajectoryId(trajectory_id) for (trajectory_id,) in rows_read]
        yield from folded_names(db, at_once=IDS_AT_ONCE)


def _totals(db: sqlite3.Connection, at: PolicyVersion | None) -> LedgerTotals:
    tree = load_tree(db)
    found = counts.count_rows(db).totals(trained_twice=counts.recount_trained_twice(db, tree))
    known = at if at is not None and at.lineage in tree.lineages else None
    return msgspec.structs.replace(found, replay=recount(db, tree, at=known), budgets=judge_uses(db))


def ids(path: Path) -> Iterator[TrajectoryId]:
    """Every trajectory the ledger knows, in order of arrival.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: as ``totals``.
    """
    with reading(path) as db:
        for (trajectory_id,) in db.execute("SELECT trajectory_id FROM trajectories ORDER BY seq"):
            yield TrajectoryId(trajectory_id)


def rows(path: Path) -> Iterator[LedgerRow]:
    """Every row, in order of arrival.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: as ``totals``.
    """
    with reading(path) as db:
        for (
            trajectory_id,
            spans_column,
            trained_lineage,
            trained_step,
            *plain,
        ) in db.execute(
            "SELECT trajectory_id, spans, trained_lineage, trained_step, state, reason, curriculum_bin, num_steps,"
            " length_tokens, reward, num_episodes, mean_return, lag, span, age_s, started_at_s, finished_at_s,"
            " accepted_at_s, leased_at_s, terminal_at_s, num_revivals FROM trajectories ORDER BY seq"
        ):
            state, reason, curriculum_bin, num_steps, length_tokens, reward, num_episodes, mean_return = (
                plain[:8]
            )
            lag, span, age_s, started, finished, accepted, leased, terminal, num_revivals = plain[8:]
            spans = spans_from(spans_column) if spans_column else ()
            yield LedgerRow(
                trajectory_id=TrajectoryId(trajectory_id),
                state=state,
                reason=reason,
                curriculum_bin=curriculum_bin,
                num_steps=num_steps,
                length_tokens=length_tokens,
                reward=reward,
                num_episodes=num_episodes,
                mean_return=mean_return,
                oldest_version=spans[0].version if spans else None,
                newest_version=spans[-1].version if spans else None,
                trained_at=version_of(trained_lineage, trained_step),
                stale_by_versions=lag,
                span=span,
                age_s=age_s,
                started_at_s=started,
                finished_at_s=finished,
                accepted_at_s=accepted,
                leased_at_s=leased,
                terminal_at_s=terminal,
                num_revivals=num_revivals,
            )


def trajectory(path: Path, trajectory_id: str) -> TrajectoryStatus:
    """One row with its provenance and every stage of its life.

    Raises:
        NotFoundError: there is no such ledger, or it has no such trajectory.
        StaleFolderError, CorruptionError: as ``totals``.
    """
    with reading(path) as db:
        return status_of(db, trajectory_id)


def status_of(db: sqlite3.Connection, trajectory_id: str) -> TrajectoryStatus:
    """One row with its provenance, from an open ledger.

    Raises:
        NotFoundError: the ledger has no such trajectory.
    """
    found = db.execute(
        "SELECT t.group_id, t.group_size, t.state, t.reason, t.detail, t.trained_lineage, t.trained_step,"
        " t.lag, t.span, t.age_s, f.received_at_s, t.accepted_at_s, t.leased_at_s, t.terminal_at_s, t.frame_index,"
        " f.head, b.learner_id, (SELECT value FROM meta WHERE key = 'run_id')"
        " FROM trajectories t LEFT JOIN frames f USING (frame_id) LEFT JOIN batches b USING (batch_id)"
        " WHERE t.trajectory_id = ?",
        (trajectory_id,),
    ).fetchone()
    # Asked only then: the folded ids are read whole.
    if found is None and folded_among(db, load_ids(db), [TrajectoryId(trajectory_id)]):
        raise NotFoundError(
            f"The row of trajectory {trajectory_id} was folded into the ledger's counters",
            why="it ended long ago, and the ledger has more than trajectory_store.rows_kept_max rows",
            fix="`tidegate audit` counts it; raise rows_kept_max in runs whose old trajectories are to be explained",
        )
    if found is None:
        raise NotFoundError(
            f"The ledger has no trajectory {trajectory_id}",
            why="it is still on its way, or was never admitted",
            fix="`tidegate status` shows how many are on their way",
        )
    group_id, group_size, state, reason, detail, trained_lineage, trained_step, *rest = found
    lag, span, age_s, received, accepted, leased, terminal, frame_index, head, learner_id, run_id = rest
    stages: tuple[StageTiming, ...] = ()
    if head is None:
        record = Trajectory(
            trajectory_id=TrajectoryId(trajectory_id),
            run_id=RunId(run_id),
            task_id=task_of(TrajectoryId(trajectory_id)),
            group_id=GroupId(group_id),
            group_size=group_size,
            spans=(),
            tensors={},
            num_steps=0,
        )
    else:
        record = _record(head, frame_index)
        stages = (*record.stages, StageTiming(STORE_STAGE, "trajectory_store", received, accepted))
    if state == "trained" and leased is not None and terminal is not None:
        stages = (*stages, StageTiming(CONSUME_STAGE, learner_id or "learner", leased, terminal))
    return TrajectoryStatus(
        trajectory=record,
        state=state,
        reason=reason,
        detail=detail,
        trained_at=version_of(trained_lineage, trained_step),
        stale_by_versions=lag or 0,
        span=span or 0,
        age_s=age_s or 0.0,
        stages=stages,
        uses=uses_of(db, load_tree(db), trajectory_id),
    )


def _record(head: bytes, index: int) -> Trajectory:
    return decode_provenance(head)[index]
