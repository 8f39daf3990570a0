"""The history of one trajectory from journal and ledger, for ``trace`` and ``explain``."""

import asyncio
import time
from pathlib import Path

import msgspec

from tidegate.cli.accounting import journal_path, ledger_path
from tidegate.cli.queries import channel_to
from tidegate.core.errors import NotFoundError
from tidegate.core.ids import TrajectoryId, task_of
from tidegate.core.records import DropReason, StageTiming, VersionSpan
from tidegate.launch.run_folder import read_record
from tidegate.launch.run_record import RunRecord
from tidegate.task_queue.journal_file import admission_of
from tidegate.trajectory_store import reading
from tidegate.wire.clients.trajectory_store import TrajectoryStatus, TrajectoryStoreClient

REASONS: dict[DropReason, str] = {
    "stale": "its oldest version was further behind the learner than the staleness budget allows",
    "expired": "it was older than max_age_s when a batch was built",
    "invalid": "its record failed validation and is kept in QUARANTINE",
    "failed": "no actor or verifier could complete it",
    "superseded": "another attempt of its task completed first",
    "settled": "its group was stopped early: its first samples were rewarded alike",
    "retired": "the run ended before an actor took it",
    "unsampled": "the replay buffer evicted it before any of its units was sampled",
    "poisoned": "no update with it is finite; QUARANTINE has the value",
}
REMEDIES_BY_REASON: dict[DropReason, str] = {
    "stale": "raise staleness.max_lag, or lower max_running so that fewer rollouts are in flight per version",
    "expired": "raise staleness.max_age_s above the time a rollout and its wait take",
    "invalid": "inspect QUARANTINE and the log of the actor that produced it",
    "failed": "see the log of the actor or environment that leased it",
    "unsampled": "raise trajectory_store.replay.capacity or samples_per_insert, or run fewer actors",
    "poisoned": "bound the environment's rewards or the verifier's scores, or set workload.reward.clip",
}


class TrajectoryHistory(msgspec.Struct, frozen=True):
    """One trajectory as journal and ledger record it. ``state`` is ``admitted`` before the ledger has a row of it."""

    trajectory_id: str
    task_id: str
    state: str
    reason: str
    detail: str
    env_id: str
    group_id: str
    group_size: int
    attempt: int
    curriculum_bin: str
    num_steps: int
    reward: float | None
    completion: str
    spans: tuple[VersionSpan, ...]
    trained_at: str | None
    stale_by_versions: int
    span: int
    age_s: float
    admitted_at_s: float | None
    stages: tuple[StageTiming, ...]
    uses: int | None = None


def read_trajectory_history(folder: Path, trajectory_id: str) -> TrajectoryHistory:
    """The history of a trajectory.

    Raises:
        NotFoundError: neither journal nor ledger has it.
    """
    record = read_record(folder)
    if record.cluster:
        return _history(asyncio.run(_ask(record, trajectory_id)), admitted_at_s=None)
    admitted = _read_admission(folder, trajectory_id)
    try:
        status = reading.trajectory(ledger_path(folder), trajectory_id)
    except NotFoundError:
        if admitted is None:
            raise NotFoundError(
                f"This run never admitted a trajectory {trajectory_id}",
                why="an id is <task id>.<sample>, as in logs, traces and the ledger",
                fix=f"use an id such as {_example(folder)}",
            ) from None
        admitted_at_s, attempt = admitted
        return TrajectoryHistory(
            trajectory_id=trajectory_id, task_id=task_of(TrajectoryId(trajectory_id)), state="admitted",
            reason="", detail="", env_id="", group_id="", group_size=0, attempt=attempt, curriculum_bin="",
            num_steps=0, reward=None, completion="", spans=(), trained_at=None, stale_by_versions=0, span=0,
            age_s=time.time() - admitted_at_s, admitted_at_s=admitted_at_s, stages=(),
        )  # fmt: skip
    return _history(status, admitted_at_s=admitted[0] if admitted is not None else None)


async def _ask(record: RunRecord, trajectory_id: str) -> TrajectoryStatus:
    """The record of the trajectory store of a cluster."""
    async with channel_to(record, "trajectory_store") as channel:
        return await TrajectoryStoreClient(channel).trajectory(trajectory_id)


def _history(status: TrajectoryStatus, *, admitted_at_s: float | None) -> TrajectoryHistory:
    record = status.trajectory
    stages = sorted(status.stages, key=lambda stage: stage.started_at_s)
    return TrajectoryHistory(
        trajectory_id=record.trajectory_id,
        task_id=record.task_id,
        state=status.state,
        reason=status.reason,
        detail=status.detail,
        env_id=record.env_id,
        group_id=record.group_id,
        group_size=record.group_size,
        attempt=record.attempt,
        curriculum_bin=record.curriculum_bin,
        num_steps=record.num_steps,
        reward=record.reward,
        completion=record.completion,
        spans=record.spans,
        trained_at=str(status.trained_at) if status.trained_at is not None else None,
        stale_by_versions=status.stale_by_versions,
        span=status.span,
        age_s=status.age_s,
        admitted_at_s=admitted_at_s,
        stages=tuple(stages),
        uses=status.uses,
    )


def sentence(history: TrajectoryHistory) -> str:
    """The outcome of a trajectory, its reason, and a remedy."""
    name = f"Trajectory {history.trajectory_id}"
    match history.state:
        case "trained":
            since = f"{history.stale_by_versions} versions and {history.age_s:.2f} s after its start"
            if history.uses is None:
                return f"{name} was trained at {history.trained_at}, {since}."
            uses = f"its units were used {history.uses} times"
            return f"{name} was first trained at {history.trained_at}, {since}; {uses}."
        case "dropped":
            reason: DropReason = history.reason  # pyright: ignore[reportAssignmentType]  # the ledger writes no other
            why = REASONS.get(reason, "")
            detail = f" ({history.detail})" if history.detail else ""
            todo = f" To prevent it, {REMEDIES_BY_REASON[reason]}." if reason in REMEDIES_BY_REASON else ""
            return f"{name} was dropped as {history.reason}: {why}{detail}.{todo}"
        case "available":
            return f"{name} is stored and waits for a batch."
        case "leased":
            return f"{name} is leased to the learner."
        case _:
            return f"{name} was admitted {history.age_s:.1f} s ago and has not arrived at the store yet."


def _read_admission(folder: Path, trajectory_id: str) -> tuple[float, int] | None:
    path = journal_path(folder)
    if not path.is_file():
        return None
    return admission_of(path, task_of(TrajectoryId(trajectory_id)))


def _example(folder: Path) -> str:
    try:
        return str(next(reading.ids(ledger_path(folder)), "none yet"))
    except NotFoundError:
        return "none yet"
