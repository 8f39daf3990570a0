"""The statistics of all service instances in one place, for views and targets. No IO."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.catalogue.kinds import Counter, Text
from tidegate.runtime.evaluations import (
    ALIASES,
    NOT_EVALUATED,
    evaluated_version,
    is_of_evaluation,
    version_order,
)
from tidegate.runtime.instances import REPLICATED
from tidegate.wire.stats import ServiceStats

# Rates are taken over this many snapshots: at two a second, the last four seconds.
RATE_SNAPSHOTS = 8
HISTORY_MAX = 2_000
# Far above any run's processes; a place is never freed, because the report at the end names all of them.
INSTANCES_MAX = 8_192


@dataclass(slots=True)
class _Instance:
    recent: deque[ServiceStats] = field(default_factory=lambda: deque(maxlen=RATE_SNAPSHOTS))
    before_restart: dict[str, float] = field(default_factory=dict[str, float])


class Board:
    """The newest snapshot of every instance, and the history of the one number that the run is about.

    Bounded: a few snapshots an instance, ``INSTANCES_MAX`` of them; the history halves its resolution when it is full.
    """

    def __init__(self, *, headline: str = "mean_return") -> None:
        """``headline``: the statistic whose history is drawn."""
        self.headline = ALIASES.get(headline, headline)
        self.history: list[tuple[float, float]] = []
        self._instances: dict[str, _Instance] = {}
        self._evaluated = NOT_EVALUATED

    def put(self, stats: ServiceStats) -> None:
        """Add one snapshot; one of an instance beyond ``INSTANCES_MAX`` is left out."""
        if stats.instance not in self._instances and len(self._instances) >= INSTANCES_MAX:
            return
        instance = self._instances.setdefault(stats.instance, _Instance())
        if instance.recent and instance.recent[-1].started_at_s != stats.started_at_s:
            for name, value in instance.recent[-1].values.items():
                instance.before_restart[name] = instance.before_restart.get(name, 0.0) + value
            instance.recent.clear()
        instance.recent.append(stats)
        value = stats.values.get(self.headline)
        if value is not None and self._is_news(stats, value):
            self.history.append((stats.at_s, value))
            if len(self.history) > HISTORY_MAX:
                self.history = self.history[::2]

    def _is_news(self, stats: ServiceStats, value: float) -> bool:
        """Whether the history lacks a value of the headline; an actor repeats its evaluation of an old version."""
        if is_of_evaluation(self.headline):
            version = evaluated_version(stats)
            is_newer = version > self._evaluated
            self._evaluated = max(version, self._evaluated)
            return is_newer
        return not self.history or self.history[-1][1] != value

    def latest(self) -> dict[str, ServiceStats]:
        """The newest snapshot by instance."""
        return {name: instance.recent[-1] for name, instance in self._instances.items()}

    def of(self, service: str) -> list[ServiceStats]:
        """The newest snapshot of each instance of a service."""
        return [stats for stats in self.latest().values() if stats.service == service]

    def rate(self, instance: str, name: Counter) -> float | None:
        """Increase a second of a counter; None before there are two snapshots."""
        found = self._instances.get(instance)
        if found is None or len(found.recent) < 2:
            return None
        first, last = found.recent[0], found.recent[-1]
        if name not in last.values or last.at_s <= first.at_s:
            return None
        return max(0.0, last.values[name] - first.values.get(name, 0.0)) / (last.at_s - first.at_s)

    def total_over_lives(self, service: str, name: Counter) -> float:
        """A counter that restarts with its process, summed over instances and over their restarts."""
        return sum(
            instance.recent[-1].values.get(name, 0.0) + instance.before_restart.get(name, 0.0)
            for instance in self._instances.values()
            if instance.recent[-1].service == service
        )

    def values(self) -> dict[str, float]:
        """Every statistic by name, over all instances.

        Counters are summed, those of replicated services, which keep nothing on disk, over their restarts too; of
        evaluations the newest version's counts, as one actor at a time makes them; of other gauges the mean.
        """
        snapshots = list(self.latest().values())
        gathered: dict[str, list[float]] = {}
        for instance in self._instances.values():
            for name, value in _over_lives(instance).items():
                gathered.setdefault(name, []).append(value)
        merged = {
            name: sum(values) if name.endswith("_total") else sum(values) / len(values)
            for name, values in gathered.items()
        }
        evaluations = [stats for stats in snapshots if any(map(is_of_evaluation, stats.values))]
        if evaluations:
            newest = max(evaluations, key=evaluated_version)
            merged |= {name: value for name, value in newest.values.items() if is_of_evaluation(name)}
        return merged | {alias: merged[name] for alias, name in ALIASES.items() if name in merged}

    def label(self, service: str, name: Text) -> str:
        """A text of a service's first instance; empty before it reports one."""
        return next((stats.labels.get(name, "") for stats in self.of(service)), "")

    def version(self) -> str:
        """The learner's version as text."""
        return self.label("learner", learner_stats.VERSION)

    def evaluated(self) -> str:
        """The version of the newest evaluation as text; empty before the first."""
        stats = max(self.of("actor"), key=evaluated_version, default=None)
        return stats.labels.get(actor_stats.EVALUATION_VERSION, "") if stats is not None else ""

    def evaluation_problem(self) -> str:
        """Why an evaluation of a version failed that is newer than the newest evaluated one; empty if none did."""
        newest = version_order(self.evaluated())
        problems = [stats.labels.get(actor_stats.EVALUATION_PROBLEM, "") for stats in self.of("actor")]
        last = max(problems, key=lambda problem: version_order(problem.partition(":")[0]), default="")
        return last if version_order(last.partition(":")[0]) > newest else ""


def _over_lives(instance: _Instance) -> dict[str, float]:
    """The newest statistics, with counters of a replicated service as if its process had never ended."""
    newest = instance.recent[-1]
    if newest.service not in REPLICATED:
        return newest.values
    lost = {name: value for name, value in instance.before_restart.items() if name.endswith("_total")}
    return lost | {name: value + lost.get(name, 0.0) for name, value in newest.values.items()}


def drops(values: Mapping[str, float]) -> dict[str, int]:
    """Dropped trajectories by reason, from the store's counters."""
    found = {
        store_stats.DROPPED_BECAUSE.value_in(name): int(value) for name, value in values.items() if value
    }
    return {reason: count for reason, count in found.items() if reason is not None}
