"""How often a curriculum of one's own failed, and the newest reason, as one sentence. No IO."""

from collections.abc import Mapping

from tidegate.catalogue import task_queue as task_queue_stats
from tidegate.wire.stats import ServiceStats


class CurriculumProblem:
    """The reason that the task queue reported last."""

    def __init__(self) -> None:
        self._reason = ""

    def receive(self, stats: ServiceStats) -> None:
        """Follow the report of the task queue; others are ignored."""
        if stats.service == "task_queue":
            self._reason = stats.labels.get(task_queue_stats.CURRICULUM_FAILURE, "") or self._reason

    def sentence(self, totals: Mapping[str, float]) -> str:
        """The failures with the newest reason, and what to do; empty without one. ``totals``: of the task queue."""
        failures = totals.get(task_queue_stats.CURRICULUM_FAILURES, 0.0)
        if failures <= 0.0:
            return ""
        reason = f", last {self._reason.rstrip('.')}" if self._reason else ""
        return (
            f"the curriculum failed {failures:,.0f} times{reason}; while it fails, bins are drawn as `learnable` does:"
            " correct it (traceback: log event curriculum_failed)"
        )
