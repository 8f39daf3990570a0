"""Sums over a run: time integrals of activities, lags of trained trajectories, and outcomes."""

from collections import Counter
from collections.abc import Iterable

from tidegate.fleet.event_queue import EventQueue


class Meters:
    """The measurements of a report. Integrals are in actor-seconds (learner-seconds, trajectory-seconds) since 0 s."""

    __slots__ = (
        "_events",
        "_since_s",
        "actors",
        "admitted",
        "busy",
        "busy_area",
        "dropped",
        "lags",
        "learner_area",
        "learning",
        "pull_area",
        "pulling",
        "queue",
        "queue_area",
        "queue_max",
        "revived",
        "scoring",
        "scoring_area",
        "stall_area",
        "straggler_area",
        "trained",
        "updates",
    )

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._since_s = 0.0
        # Counts now: actors that are up, that roll out, that wait for weights; rollouts being scored.
        self.actors = self.busy = self.pulling = self.scoring = self.queue = 0
        self.learning = False
        self.busy_area = self.pull_area = self.straggler_area = self.stall_area = 0.0
        self.learner_area = self.scoring_area = self.queue_area = 0.0
        self.queue_max = 0
        self.admitted = self.trained = self.updates = self.revived = 0
        self.lags: Counter[int] = Counter()
        self.dropped: Counter[str] = Counter()

    def advance(self) -> None:
        """Integrate the time since the last change; call it before each change of activity.

        An idle actor waits for stragglers while any rollout is in flight, else for the learner.
        """
        elapsed_s = self._events.now_s - self._since_s
        if elapsed_s <= 0.0:
            return
        self._since_s = self._events.now_s
        self.busy_area += self.busy * elapsed_s
        self.pull_area += self.pulling * elapsed_s
        idle = self.actors - self.busy - self.pulling
        if self.busy or self.scoring:
            self.straggler_area += idle * elapsed_s
        else:
            self.stall_area += idle * elapsed_s
        if self.learning:
            self.learner_area += elapsed_s
        self.scoring_area += self.scoring * elapsed_s
        self.queue_area += self.queue * elapsed_s

    def queued(self, change: int) -> None:
        """Trajectories entered or left the store's pool."""
        self.advance()
        self.queue += change
        self.queue_max = max(self.queue_max, self.queue)

    def note_trained(self, lags: Iterable[int], *, count: int) -> None:
        """An update was made of ``count`` trajectories."""
        self.lags.update(lags)
        self.trained += count
        self.updates += 1

    def lag_mean(self) -> float:
        """Mean lag of what was trained, 0 without any."""
        total = self.lags.total()
        return sum(lag * count for lag, count in self.lags.items()) / total if total else 0.0

    def lag_quantile(self, share: float) -> int:
        """The smallest lag that at least ``share`` of what was trained does not exceed."""
        wanted, seen = share * self.lags.total(), 0
        for lag in sorted(self.lags):
            seen += self.lags[lag]
            if seen >= wanted:
                return lag
        return 0
