"""Ends a run whose actors refuse every task, with their reason: the tasks would be offered again for ever."""

from tidegate.catalogue import actor as actor_stats
from tidegate.core.errors import TidegateError
from tidegate.launch.board import Board

# Each actor reports twice a second and gets its first task at once; longer, and one that is late would be overlooked.
REFUSED_FOR_S = 3.0
REPORTS_LATE_S = 3.0


class TasksRefusedError(TidegateError):
    """No actor runs the tasks of this run."""


class RefusalWatch:
    """Compares the actors' newest reports at each tick."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def problem(self, board: Board, *, now_s: float) -> TasksRefusedError | None:
        """The reason to end the run; None while an actor has made something, works, or may still begin."""
        reason = _reason(board, now_s=now_s)
        if not reason:
            self._since_s = None
            return None
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < REFUSED_FOR_S:
            return None
        return TasksRefusedError(
            "Every actor refuses its tasks", why=reason, fix="correct it, then start the run again"
        )


def _reason(board: Board, *, now_s: float) -> str:
    actors = [stats for stats in board.of("actor") if now_s - stats.at_s < REPORTS_LATE_S]
    if board.total_over_lives("actor", actor_stats.TRAJECTORIES) > 0:
        return ""
    reasons = [stats.labels.get(actor_stats.TASK_REFUSAL, "") for stats in actors]
    busy = any(
        not reason and stats.values.get(actor_stats.BUSY_TASKS, 0.0) > 0
        for reason, stats in zip(reasons, actors, strict=True)
    )
    return "" if busy else next(filter(None, reasons), "")
