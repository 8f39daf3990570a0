"""The last seconds of every service instance's statistics: rates, shares of time, and sums over instances. No IO."""

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

from tidegate.wire.stats import ServiceStats

# An instance that said nothing for this long is gone: six of its reports, two of a slow one's.
SILENT_AFTER_S = 3.0
# Far above any run file's replicas; a flood of made-up names must not grow memory.
INSTANCES_MAX = 1024
GONE_STATES = frozenset({"stopped", "failed"})

# Gauges that add up over instances; of other gauges the mean counts, and of this one the slowest.
_SUMMED = ("_mb", "_bytes", "_trajectories", "_per_s")
_SLOWEST = frozenset({"serving_step"})


class Observations:
    """The last seconds of every instance's statistics. Bounded by ``INSTANCES_MAX`` and the window."""

    def __init__(self, *, window_s: float) -> None:
        """Nothing has reported yet."""
        self._window_s = window_s
        self._recent: dict[str, deque[tuple[float, ServiceStats]]] = {}
        # Counters of lives that ended, so that sums over a service never go back when a process starts anew.
        self._before: dict[str, dict[str, float]] = {}

    def put(self, stats: ServiceStats, *, now_s: float) -> None:
        """Take in one report; ``now_s`` is when it arrived, so that clocks of other machines do not matter."""
        recent = self._recent.get(stats.instance)
        if recent is None:
            if len(self._recent) >= INSTANCES_MAX:
                return
            recent = self._recent[stats.instance] = deque()
        if recent and recent[-1][1].started_at_s != stats.started_at_s:
            before = self._before.setdefault(stats.instance, {})
            for name, value in recent[-1][1].values.items():
                if name.endswith("_total"):
                    before[name] = before.get(name, 0.0) + value
        recent.append((now_s, stats))
        # One report beyond the window stays, so that increments cover all of it.
        while len(recent) > 2 and recent[1][0] < now_s - self._window_s:
            recent.popleft()

    def alive(self, service: str, *, now_s: float) -> list[str]:
        """Instances of a service that report and do not say that they ended."""
        return [
            instance
            for instance, recent in self._recent.items()
            if recent[-1][1].service == service
            and now_s - recent[-1][0] <= SILENT_AFTER_S
            and recent[-1][1].state not in GONE_STATES
        ]

    def latest(self, service: str, *, now_s: float) -> list[ServiceStats]:
        """The newest report of each living instance."""
        return [self._recent[instance][-1][1] for instance in self.alive(service, now_s=now_s)]

    def services(self) -> list[str]:
        """Every service that ever reported."""
        return sorted({recent[-1][1].service for recent in self._recent.values()})

    def rate(self, service: str, name: str, *, now_s: float) -> float:
        """Increase a second of a counter over the window, summed over living instances."""
        return sum((self._rate(instance, name) for instance in self.alive(service, now_s=now_s)), 0.0)

    def ratio(self, service: str, name: str, *, now_s: float) -> float:
        """Share of wall time that a counter of seconds took, mean over living instances."""
        instances = self.alive(service, now_s=now_s)
        return mean(min(1.0, self._rate(instance, name)) for instance in instances)

    def gauge(self, service: str, name: str, *, now_s: float) -> float:
        """A gauge's mean over the window, summed over living instances."""
        means = (
            mean(stats.values.get(name, 0.0) for _, stats in self._recent[instance])
            for instance in self.alive(service, now_s=now_s)
        )
        return sum(means, 0.0)

    def _rate(self, instance: str, name: str) -> float:
        recent = self._recent[instance]
        elapsed_s = recent[-1][0] - recent[0][0]
        if elapsed_s <= 0:
            return 0.0
        increase = sum(
            max(0.0, after.values.get(name, 0.0) - before.values.get(name, 0.0))
            for (_, before), (_, after) in pairwise(recent)
            if after.started_at_s == before.started_at_s
        )
        return increase / elapsed_s

    def merged(self, *, now_s: float) -> dict[str, float]:
        """One number a statistic and service, ``<service>.<name>``.

        Counters are summed over instances and over their lives; sizes are summed over living instances; of other
        gauges the mean counts.
        """
        numbers: dict[str, float] = {}
        for service in self.services():
            latest = self.latest(service, now_s=now_s)
            numbers[f"{service}.instances"] = float(len(latest))
            for name in sorted({name for stats in latest for name in stats.values}):
                values = [stats.values[name] for stats in latest if name in stats.values]
                if name in _SLOWEST:
                    numbers[f"{service}.{name}"] = min(values)
                elif name.endswith(_SUMMED):
                    numbers[f"{service}.{name}"] = sum(values)
                elif not name.endswith("_total"):
                    numbers[f"{service}.{name}"] = mean(values)
            for name, total in self._totals(service).items():
                numbers[f"{service}.{name}"] = total
        return numbers

    def _totals(self, service: str) -> dict[str, float]:
        totals: dict[str, float] = {}
        for instance, recent in self._recent.items():
            stats = recent[-1][1]
            if stats.service == service:
                before = self._before.get(instance, {})
                for name in {*stats.values, *before}:
                    if name.endswith("_total"):
                        totals[name] = (
                            totals.get(name, 0.0) + stats.values.get(name, 0.0) + before.get(name, 0.0)
                        )
        return totals


def mean(values: Iterable[float]) -> float:
    """The mean, 0 of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
