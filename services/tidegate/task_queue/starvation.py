"""Which actors had no task, from their reports: all that was published before was delivered. No IO."""

from dataclasses import dataclass

from tidegate.catalogue import actor as actor_stats
from tidegate.task_queue.state import was_starved
from tidegate.wire.stats import ServiceStats

# Reports of more actors than this are ignored: the sweep needs only one starved actor.
ACTORS_MAX = 4096
# A place is freed after this long without a report: pods of a long run have ever new names.
FORGOTTEN_AFTER_S = 600.0


@dataclass(slots=True)
class _ActorReport:
    waited_s: float
    started_at_s: float
    received_at_s: float


class ActorReports:
    """The newest report of each actor. ``starved_from_s``: when the newest wait without a task had begun."""

    def __init__(self) -> None:
        """No actor reported yet."""
        self.starved_from_s = 0.0
        # The oldest first.
        self._reports: dict[str, _ActorReport] = {}

    def receive(self, stats: ServiceStats, *, now_s: float) -> None:
        """Add a report of an actor; others are ignored."""
        if stats.service != "actor":
            return
        report = _ActorReport(stats.values.get(actor_stats.WAIT_TASK_S, 0.0), stats.started_at_s, now_s)
        before = self._reports.pop(stats.instance, None)
        if before is not None and before.started_at_s == report.started_at_s:
            waited_s = report.waited_s - before.waited_s
            if was_starved(waited_s=waited_s, elapsed_s=now_s - before.received_at_s):
                self.starved_from_s = max(self.starved_from_s, before.received_at_s)
        if len(self._reports) >= ACTORS_MAX:
            oldest = next(iter(self._reports))
            if now_s - self._reports[oldest].received_at_s <= FORGOTTEN_AFTER_S:
                return
            del self._reports[oldest]
        self._reports[stats.instance] = report
