"""Statistics of every service instance, aggregated as they arrive: rates, shares of time, and sums. No IO.

The cost of a report is the number of changed values, and the cost of a query the number of statistics, not of
instances: sums over live instances are adjusted by the difference to each instance's previous report, and increases of
counters go into slots of time that leave the window as a whole. So a query over ten thousand actors is as fast as over
ten.

Counters (``*_total``) belong to one life of a process. A restarted process counts from zero, or from what it kept on
disk; either way its first report is no increase, and the counts of its previous life stay in the totals.
"""

import collections
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.catalogue.kinds import Counter, Gauge
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.runtime.instances import REPLICATED
from tidegate.wire.stats import STATISTICS_MAX, ServiceStats

# An instance without a report for this long counts as lost: six reports of a normal one, two of a slow one.
SILENT_AFTER_S = 3.0
# Far above any run file's replicas; a flood of made-up names must not grow memory.
INSTANCES_MAX = 16_384
# A place is freed after this long without a report: pods of a long run have ever new names.
FORGOTTEN_AFTER_S = 600.0
SERVICES_MAX = 64
GONE_STATES = frozenset({"stopped", "failed"})
# The window's edge is off by at most one part in this many.
SLOTS = 20

# Gauges that are summed over instances; other gauges are averaged, and this one takes the minimum.
_SUMMED = ("_mb", "_bytes", "_trajectories", "_per_s")
_SLOWEST = actor_stats.SERVING_STEP
# Counts up like a counter, and is a gauge by name.
_COUNTED = learner_stats.VERSION_STEP
# Gauges that are averaged over the window: they fill and drain with every batch.
AVERAGED = (
    store_stats.AVAILABLE_TRAJECTORIES,
    queue_stats.RUNNING_TRAJECTORIES,
    queue_stats.IN_FLIGHT_TRAJECTORIES,
)


@dataclass(slots=True)
class _InstanceReport:
    """The newest report of an instance, when it arrived, and the version it serves."""

    stats: ServiceStats
    at_s: float
    serving: PolicyVersion | None = None


@dataclass(slots=True)
class _Slot:
    """One part of the window. ``elapsed_s``: seconds that its reports cover, summed over instances."""

    index: int
    elapsed_s: float = 0.0
    increases: dict[str, float] = field(default_factory=dict[str, float])
    averaged: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])


@dataclass(slots=True)
class _Service:
    """All instances of one service, aggregated."""

    # Live instances, the oldest report first.
    living: dict[str, _InstanceReport] = field(default_factory=dict[str, _InstanceReport])
    # Gauges of live instances: the sum, and how many report it.
    sums: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    # Counters over all instances and all of their lives.
    totals: dict[str, float] = field(default_factory=dict[str, float])
    serving: collections.Counter[PolicyVersion] = field(default_factory=collections.Counter[PolicyVersion])
    slots: deque[_Slot] = field(default_factory=lambda: deque[_Slot](maxlen=SLOTS + 1))
    reports_since_rebuild: int = 0


class Observations:
    """The newest reports and the last ``window_s`` seconds. Bounded by ``INSTANCES_MAX`` and ``SLOTS``."""

    def __init__(self, *, window_s: float) -> None:
        self.window_s = window_s
        self._slot_s = window_s / SLOTS
        # The oldest report first.
        self._newest: dict[str, _InstanceReport] = {}
        self._services: dict[str, _Service] = {}

    def put(self, stats: ServiceStats, *, now_s: float) -> None:
        """Add one report; ``now_s`` is its time of arrival, so that clocks of other machines do not matter."""
        before = self._newest.get(stats.instance)
        if before is None:
            if len(self._newest) >= INSTANCES_MAX and not self._forget_oldest(now_s=now_s):
                return
            if stats.service not in self._services:
                if len(self._services) >= SERVICES_MAX:
                    return
                self._services[stats.service] = _Service()
        elif before.stats.service != stats.service:
            return  # an instance never changes its service: another process uses its name
        service = self._services[stats.service]
        _forget_silent(service, now_s=now_s)
        self._newest.pop(stats.instance, None)
        report = self._newest[stats.instance] = _InstanceReport(stats, now_s)
        same_life = before is not None and before.stats.started_at_s == stats.started_at_s
        slot = self._slot(service, now_s=now_s)
        if before is not None and 0.0 <= now_s - before.at_s <= SILENT_AFTER_S:
            slot.elapsed_s += now_s - before.at_s
            if same_life:
                _add_increases(slot, before.stats.values, stats.values)
        _add_totals(service, before.stats.values if before is not None and same_life else {}, stats.values)
        for name in AVERAGED:
            if name in stats.values:
                total, number = slot.averaged.get(name, (0.0, 0))
                slot.averaged[name] = (total + stats.values[name], number + 1)
        _replace(service, stats.instance, report)

    def _forget_oldest(self, *, now_s: float) -> bool:
        """Free the place of the instance that is silent for longest, if it is for long; its counts stay."""
        instance, report = next(iter(self._newest.items()))
        if now_s - report.at_s <= FORGOTTEN_AFTER_S:
            return False
        _forget_silent(self._services[report.stats.service], now_s=now_s)
        del self._newest[instance]
        return True

    def alive(self, service: str, *, now_s: float) -> list[str]:
        """Instances of a service that report and have not ended."""
        return list(self._living(service, now_s=now_s).living)

    def num_alive(self, service: str, *, now_s: float) -> int:
        """The number of live instances."""
        return len(self._living(service, now_s=now_s).living)

    def latest(self, service: str, *, now_s: float) -> list[ServiceStats]:
        """The newest report of each live instance; linear in the instances."""
        return [report.stats for report in self._living(service, now_s=now_s).living.values()]

    def services(self) -> list[str]:
        """Every service that ever reported."""
        return sorted(self._services)

    def rate(self, service: str, name: Counter | Gauge, *, now_s: float) -> float:
        """Increase a second of a counter over the window, summed over living instances."""
        return self._share(service, name, now_s=now_s) * self.num_alive(service, now_s=now_s)

    def ratio(self, service: str, name: Counter, *, now_s: float) -> float:
        """Share of the living instances' wall time that a counter of seconds took, at most all of it."""
        return (
            min(1.0, self._share(service, name, now_s=now_s)) if self.num_alive(service, now_s=now_s) else 0.0
        )

    def increase(self, service: str, name: Counter, *, now_s: float) -> float:
        """Increase of a counter over the window, of all instances."""
        return sum(slot.increases.get(name, 0.0) for slot in self._recent(service, now_s=now_s))

    def gauge(self, service: str, name: Gauge, *, now_s: float) -> float:
        """Mean over the window of one of the ``AVERAGED`` gauges, summed over living instances."""
        samples = [slot.averaged.get(name, (0.0, 0)) for slot in self._recent(service, now_s=now_s)]
        number = sum(count for _, count in samples)
        mean_of_one = sum(total for total, _ in samples) / number if number else 0.0
        return mean_of_one * self.num_alive(service, now_s=now_s)

    def mean_of(self, service: str, name: Gauge, *, now_s: float) -> float:
        """Mean of a gauge over the living instances that have it, 0 without any."""
        known = self._living(service, now_s=now_s)
        count = known.counts.get(name, 0)
        return known.sums[name] / count if count else 0.0

    def total(self, service: str, name: Counter) -> float | None:
        """A counter over all instances and lives; None before its first report."""
        known = self._services.get(service)
        return known.totals.get(name) if known is not None else None

    def totals(self, service: str) -> dict[str, float]:
        """Every counter of a service over all instances and lives."""
        known = self._services.get(service)
        return dict(known.totals) if known is not None else {}

    def serving(self, *, now_s: float) -> collections.Counter[PolicyVersion]:
        """How many living actors serve each version."""
        return self._living("actor", now_s=now_s).serving

    def merged(self, *, now_s: float) -> dict[str, float]:
        """One number a statistic and service, ``<service>.<name>``.

        Counters of a replicated service are summed over instances and over their lives. Those of others are the newest
        report's: most are kept on disk, and would be counted again after each restart. Sizes are summed over living
        instances; of other gauges the mean counts.
        """
        numbers: dict[str, float] = {}
        for service in self.services():
            known = self._living(service, now_s=now_s)
            numbers[f"{service}.instances"] = float(len(known.living))
            for name in sorted(known.sums):
                if name == _SLOWEST:
                    numbers[f"{service}.{name}"] = float(min(version.step for version in known.serving))
                elif name.endswith(_SUMMED):
                    numbers[f"{service}.{name}"] = known.sums[name]
                else:
                    numbers[f"{service}.{name}"] = known.sums[name] / known.counts[name]
            for name, total in self._counters(service, known).items():
                numbers[f"{service}.{name}"] = total
        return numbers

    def _counters(self, service: str, known: _Service) -> dict[str, float]:
        newest = self._newest.get(service) if service not in REPLICATED else None
        if newest is None:
            return known.totals
        return {name: value for name, value in newest.stats.values.items() if _is_counter(name)}

    def _share(self, service: str, name: Counter | Gauge, *, now_s: float) -> float:
        """Increase of a counter a second of one instance."""
        slots = self._recent(service, now_s=now_s)
        elapsed_s = sum(slot.elapsed_s for slot in slots)
        return sum(slot.increases.get(name, 0.0) for slot in slots) / elapsed_s if elapsed_s > 0 else 0.0

    def _living(self, service: str, *, now_s: float) -> _Service:
        known = self._services.get(service)
        if known is None:
            return _Service()
        _forget_silent(known, now_s=now_s)
        return known

    def _slot(self, service: _Service, *, now_s: float) -> _Slot:
        index = int(now_s // self._slot_s)
        if service.slots and service.slots[-1].index > index:
            service.slots.clear()  # the clock went back: the slots' times are meaningless
        if not service.slots or service.slots[-1].index != index:
            service.slots.append(_Slot(index))
        return service.slots[-1]

    def _recent(self, service: str, *, now_s: float) -> list[_Slot]:
        known = self._services.get(service)
        oldest = int(now_s // self._slot_s) - SLOTS
        return [slot for slot in known.slots if slot.index >= oldest] if known is not None else []


def mean(values: Iterable[float]) -> float:
    """The mean, 0 of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


def _is_counter(name: str) -> bool:
    return name.endswith("_total")


def _has_place(name: str, numbers: dict[str, float]) -> bool:
    """Whether a name is kept beyond its report: those of one service are as many as a report may have."""
    return name in numbers or len(numbers) < STATISTICS_MAX


def _add_increases(slot: _Slot, before: dict[str, float], after: dict[str, float]) -> None:
    increases = slot.increases
    for name, value in after.items():
        increase = value - before.get(name, 0.0)
        if increase > 0 and (_is_counter(name) or name == _COUNTED) and _has_place(name, increases):
            increases[name] = increases.get(name, 0.0) + increase


def _add_totals(service: _Service, before: dict[str, float], after: dict[str, float]) -> None:
    totals = service.totals
    for name, value in after.items():
        known = before.get(name)
        if value != known and _is_counter(name) and _has_place(name, totals):
            totals[name] = totals.get(name, 0.0) + value - (known or 0.0)


def _replace(service: _Service, instance: str, report: _InstanceReport) -> None:
    """Make this report its instance's newest, at the end of the order."""
    before = service.living.pop(instance, None)
    if before is not None:
        _leave(service, before)
    if report.stats.state in GONE_STATES:
        return
    report.serving = _serving(report.stats, before)
    service.living[instance] = report
    service.reports_since_rebuild += 1
    if service.reports_since_rebuild < len(service.living):
        _enter(service, report)
        return
    # Once per round of reports everything is summed again, so that rounding errors do not accumulate.
    service.reports_since_rebuild = 0
    service.sums.clear()
    service.counts.clear()
    service.serving.clear()
    for each in service.living.values():
        _enter(service, each)


def _enter(service: _Service, report: _InstanceReport) -> None:
    sums, counts = service.sums, service.counts
    for name, value in report.stats.values.items():
        if not _is_counter(name):
            sums[name] = sums.get(name, 0.0) + value
            counts[name] = counts.get(name, 0) + 1
    if report.serving is not None:
        service.serving[report.serving] += 1


def _leave(service: _Service, report: _InstanceReport) -> None:
    sums, counts = service.sums, service.counts
    for name, value in report.stats.values.items():
        if not _is_counter(name):
            sums[name] -= value
            counts[name] -= 1
            if not counts[name]:
                del sums[name], counts[name]
    if report.serving is not None:
        service.serving[report.serving] -= 1
        if not service.serving[report.serving]:
            del service.serving[report.serving]


def _forget_silent(service: _Service, *, now_s: float) -> None:
    while service.living:
        instance, report = next(iter(service.living.items()))
        report.at_s = min(report.at_s, now_s)  # a clock that went back must not keep it alive
        if now_s - report.at_s <= SILENT_AFTER_S:
            return
        del service.living[instance]
        _leave(service, report)


def _serving(stats: ServiceStats, before: _InstanceReport | None) -> PolicyVersion | None:
    """The version that an actor reports; without a label its lineage is the empty one."""
    step = stats.values.get(_SLOWEST)
    if step is None:
        return None
    label = stats.labels.get(actor_stats.SERVING_VERSION, "")
    same_label = before is not None and before.stats.labels.get(actor_stats.SERVING_VERSION, "") == label
    if before is not None and same_label and before.serving is not None and before.serving.step == step:
        return before.serving  # the common case
    return PolicyVersion(lineage=LineageName(label.rpartition("@")[0]), step=int(step))
