"""The data of the live view, which the supervisor and ``tidegate status`` draw."""

import time
from collections.abc import Mapping
from typing import Protocol

import msgspec

from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import supervisor as supervisor_stats
from tidegate.core.targets import RunTarget
from tidegate.launch.board import Board
from tidegate.launch.run_plan import RunPlan
from tidegate.wire.permissions import SUPERVISOR

BROKER = "nats-server"
TRAINING = "training"
PAUSED = "paused"


class LiveRun(msgspec.Struct, frozen=True):
    """The fixed facts of a run and the board that changes under them."""

    run_id: str
    folder: str
    plan: RunPlan
    target: RunTarget
    started_at_s: float
    board: Board
    phase: str = "starting"
    time_limit_s: float | None = None

    def elapsed_s(self) -> float:
        """Seconds since the platform was started."""
        return max(0.0, time.time() - self.started_at_s)


class Screen(Protocol):
    """Shows a live run each time it is called."""

    def show(self, live: LiveRun) -> None:
        """Draw the current state."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


def phase_of(board: Board, *, otherwise: str) -> str:
    """``otherwise``, unless the run's disk has a problem, such as ``disk full``, or the run is paused."""
    return disk_problem_of(board).partition(":")[0] or (PAUSED if pause_of(board) else otherwise)


def is_warming_up(values: Mapping[str, float]) -> bool:
    """Whether the learner trains on demonstrations, before its first version."""
    return learner_stats.WARMUP_STEPS in values and learner_stats.VERSION_STEP not in values


def phase_without_update(values: Mapping[str, float]) -> str:
    """The phase of services that are ready before the first gradient, from their statistics."""
    if is_warming_up(values):
        return f"warming up, {_warmup_progress(values)}"
    refused = values.get(learner_stats.INVALID_BATCHES, 0.0)
    return "waiting for the first batch" + (f", {refused:,.0f} refused by the learner" if refused else "")


def _warmup_progress(values: Mapping[str, float]) -> str:
    steps = f"{values[learner_stats.WARMUP_STEPS]:,.0f} steps"
    if learner_stats.WARMUP_HELDOUT_LOSS in values:
        return f"{steps}, held-out loss {values[learner_stats.WARMUP_HELDOUT_LOSS]:.3f}"
    solved = values.get(learner_stats.WARMUP_SOLVED_SHARE)
    return steps if solved is None else f"{solved:.0%} solved"


def disk_problem_of(board: Board) -> str:
    """Why the run's disk cannot be written, from the supervisor; empty while there is space."""
    return board.label(SUPERVISOR, supervisor_stats.DISK_PROBLEM)


def backup_problem_of(board: Board) -> str:
    """Why the last backup failed or is overdue, from the supervisor; empty without one."""
    return board.label(SUPERVISOR, supervisor_stats.BACKUP_PROBLEM)


def backup_of(board: Board) -> str:
    """The newest backup as a sentence, from the supervisor; empty where none was asked for."""
    return board.label(SUPERVISOR, supervisor_stats.BACKUP)


def pause_of(board: Board) -> str:
    """Why the run is paused, from admission; empty while it is not."""
    return board.label("admission", admission_stats.PAUSE)


def verifier_problem_of(board: Board) -> str:
    """How many verdicts of verifiers failed, and why, from admission; empty without one."""
    return board.label("admission", admission_stats.VERIFIER_PROBLEM)


def curriculum_problem_of(board: Board) -> str:
    """How often the curriculum failed, and why, from admission; empty without one."""
    return board.label("admission", admission_stats.CURRICULUM_PROBLEM)


def headline_of(target: RunTarget, plan: RunPlan) -> str:
    """The statistic of the chart: the first of the target, or the score of the workload."""
    if target.conditions:
        return target.conditions[0].name
    return learner_stats.MEAN_RETURN if plan.file.workload.kind == "segments" else "solved_share"
