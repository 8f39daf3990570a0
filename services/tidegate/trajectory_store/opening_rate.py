"""How often lineages may be opened: each stays in the run's tree for good, and ends the learner before it."""

from collections import deque

from tidegate.core.errors import BackpressureError

# A learner that is killed every few seconds stays below this; one opens a lineage when it starts.
OPENINGS_MAX = 32
PERIOD_S = 60.0


class OpeningRate:
    """At most ``OPENINGS_MAX`` new lineages in ``PERIOD_S``; time frees a place."""

    def __init__(self) -> None:
        self._opened_at_s: deque[float] = deque(maxlen=OPENINGS_MAX)

    def take(self, *, now_s: float) -> None:
        """Count one opening, at a monotonic time.

        Raises:
            BackpressureError: there were too many within the period.
        """
        if len(self._opened_at_s) == OPENINGS_MAX and now_s - self._opened_at_s[0] < PERIOD_S:
            error = BackpressureError(
                f"{OPENINGS_MAX} lineages were opened within {PERIOD_S:g} s",
                why="a learner that starts opens one, and every learner before it ends",
                fix="read the learner's log: it restarts all the time, or several learners run",
            )
            error.retry_after_s = PERIOD_S - (now_s - self._opened_at_s[0])
            raise error
        self._opened_at_s.append(now_s)
