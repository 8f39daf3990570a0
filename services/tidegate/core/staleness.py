"""Versions, lineages and the one staleness check (I1).

``lag`` is the distance from the oldest version inside a trajectory to the learner's version at consumption; ``span``
the distance between its newest and oldest; ``age`` the seconds since it was started. They are never combined.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from tidegate.core.errors import UnknownVersionError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import VersionSpan

# Beyond any step that a run reaches.
_FAR_STEP = 2**62


class Lineage(msgspec.Struct, frozen=True):
    """A line of updates. A restored learner opens a new one that names its parent and the step it forked at."""

    name: LineageName
    parent: LineageName | None = None
    fork_step: int = 0


class LineageTree(msgspec.Struct, frozen=True):
    """All lineages of a run. Small (one entry a learner restart), so it travels whole with each announcement."""

    lineages: dict[LineageName, Lineage] = {}

    def add(self, lineage: Lineage) -> "LineageTree":
        """The tree with one more branch; adding the same branch twice changes nothing.

        Raises:
            UnknownVersionError: the parent is not in the tree, or the name is taken by another branch.
        """
        return self.add_all((lineage,))

    def add_all(self, lineages: Iterable[Lineage]) -> "LineageTree":
        """The tree with more branches, parents before children; copied once.

        Raises:
            UnknownVersionError: as ``add``.
        """
        found = dict(self.lineages)
        for lineage in lineages:
            _add(found, lineage)
        return self if len(found) == len(self.lineages) else LineageTree(found)

    def path(self, version: PolicyVersion) -> list[tuple[LineageName, int]]:
        """Lineages from ``version`` to the root, each with the last step of it that ``version`` descends from.

        Raises:
            UnknownVersionError: the lineage, or one of its ancestors, is not in the tree.
        """
        return list(self._way_back(version))

    def _way_back(self, version: PolicyVersion) -> Iterator[tuple[LineageName, int]]:
        """``path``, as far as it is asked for: a run of a thousand restarts has a thousand lineages."""
        name: LineageName | None = version.lineage
        step = version.step
        while name is not None:
            lineage = self.lineages.get(name)
            if lineage is None:
                raise UnknownVersionError(
                    f"Policy version {version} belongs to lineage {name}, which this run never opened",
                    fix="check that the sender belongs to this run; the record is kept in QUARANTINE",
                )
            yield name, step
            name, step = lineage.parent, min(step, lineage.fork_step)

    def distance(self, head: PolicyVersion, version: PolicyVersion) -> int:
        """Updates between two versions, through their common ancestor.

        On one branch it is the difference of steps. A version on a dead branch is as far as its way back to the fork
        plus the way up to ``head``, so data from before a restore still has an honest lag.

        Raises:
            UnknownVersionError: either lineage is not in the tree.
        """
        up: dict[LineageName, int] = {}
        for lineage, step in self._way_back(head):
            if lineage == version.lineage:  # nearly always the first
                return head.step + version.step - 2 * min(step, version.step)
            up[lineage] = step
        for lineage, step in self._way_back(version):
            if lineage in up:
                return head.step + version.step - 2 * min(step, up[lineage])
        return head.step + version.step

    def descends(self, version: PolicyVersion, ancestor: PolicyVersion) -> bool:
        """Whether ``version`` is ``ancestor`` or was trained from it."""
        return any(
            name == ancestor.lineage and step >= ancestor.step for name, step in self._way_back(version)
        )

    def satisfies(self, version: PolicyVersion, required: PolicyVersion) -> bool:
        """Whether an actor that serves ``version`` may start a task that asks for ``required``.

        A requirement that points into a branch which died is met by any version of a branch opened after it, be it
        its child or its sibling (two restores from one checkpoint): the learner itself went back, and a task must not
        wait for a version that will never come. A lineage that this tree does not contain is newer: wait for it.

        Raises:
            UnknownVersionError: the lineage of ``version`` is not in the tree.
        """
        if version.lineage == required.lineage:
            return version.step >= required.step
        order = list(self.lineages)
        if version.lineage not in order:
            raise UnknownVersionError(f"Policy version {version} belongs to a lineage this run never opened")
        return required.lineage in order and order.index(version.lineage) > order.index(required.lineage)


def _add(lineages: dict[LineageName, Lineage], lineage: Lineage) -> None:
    known = lineages.get(lineage.name)
    if known == lineage:
        return
    if known is not None:
        raise UnknownVersionError(
            f"Lineage {lineage.name} is already known with another parent",
            why=f"it forked from {known.parent}@{known.fork_step}, not {lineage.parent}@{lineage.fork_step}",
            fix="two learners of one run are running: stop one",
        )
    if lineage.parent is not None and lineage.parent not in lineages:
        raise UnknownVersionError(
            f"Lineage {lineage.name} names parent {lineage.parent}, which no learner opened",
            fix="restore the run folder that holds the parent's checkpoint, or start a new run",
        )
    lineages[lineage.name] = lineage


class StalenessLimits(msgspec.Struct, frozen=True):
    """The budget: ``max_lag`` in policy versions, ``max_age_s`` in seconds since the rollout started."""

    max_lag: int
    max_age_s: float


def tighter(one: StalenessLimits, other: StalenessLimits) -> StalenessLimits:
    """The budget that holds where two do: while a change is on its way, one service has it before another."""
    return StalenessLimits(min(one.max_lag, other.max_lag), min(one.max_age_s, other.max_age_s))


class Fresh(msgspec.Struct, frozen=True):
    """Inside the budget; the numbers are written to the record at consumption."""

    lag: int
    span: int
    age_s: float


class Stale(msgspec.Struct, frozen=True):
    """More versions behind than the budget allows."""

    lag: int
    limit: int

    def __str__(self) -> str:
        """What ``tidegate explain`` prints for a dropped trajectory."""
        return f"{self.lag} versions behind the learner (max_lag {self.limit})"


class Expired(msgspec.Struct, frozen=True):
    """Older in seconds than the budget allows."""

    age_s: float
    limit_s: float

    def __str__(self) -> str:
        """What ``tidegate explain`` prints for a dropped trajectory."""
        return f"{self.age_s:.1f} s old (max_age_s {self.limit_s:g})"


Verdict: TypeAlias = Fresh | Stale | Expired


def lag_of(spans: Iterable[VersionSpan], head: PolicyVersion, tree: LineageTree) -> int:
    """``stale_by_versions``: the distance from ``head`` to the farthest version inside the trajectory."""
    return max((tree.distance(head, span.version) for span in spans), default=0)


def lag_offset(spans: Iterable[VersionSpan], lineage: LineageName, tree: LineageTree) -> int:
    """What is added to a head's step for ``lag_of``, while the head moves along ``lineage``: the same for every step.

    Holds for heads that are not behind a version of their own lineage. For many trajectories whose lag is compared
    again and again; ``judge`` still has the last word.

    Raises:
        UnknownVersionError: a lineage is not in the tree.
    """
    far = PolicyVersion(lineage=lineage, step=_FAR_STEP)
    return lag_of(spans, far, tree) - _FAR_STEP


def span_of(spans: Iterable[VersionSpan], tree: LineageTree) -> int:
    """Distance between the newest and the oldest version inside one trajectory."""
    versions = [span.version for span in spans]
    return max((tree.distance(newer, older) for newer in versions for older in versions), default=0)


def clock_ahead_s(newest_s: float, *, received_at_s: float) -> float:
    """How far the clock of a rollout's actor is seen to be ahead of the receiver's: no time of it is after its arrival.

    Its times less this are by the receiver's clock, late by at most the time from its end to its arrival. Without it,
    work of a clock an hour ahead would look an hour younger than it is.
    """
    return max(0.0, newest_s - received_at_s)


def judge(
    spans: tuple[VersionSpan, ...],
    *,
    started_at_s: float,
    head: PolicyVersion,
    tree: LineageTree,
    limits: StalenessLimits,
    now_s: float,
) -> Verdict:
    """The check between a trajectory and a gradient (I1), made when a batch is built and before the loss.

    Raises:
        UnknownVersionError: a span names a lineage that the run never opened.
    """
    return judge_measured(
        lag=lag_of(spans, head, tree),
        span=span_of(spans, tree),
        age_s=now_s - started_at_s,
        limits=limits,
    )


def judge_measured(*, lag: int, span: int, age_s: float, limits: StalenessLimits) -> Verdict:
    """``judge`` of a trajectory whose lag (versions), span (versions) and age are known."""
    if lag > limits.max_lag:
        return Stale(lag=lag, limit=limits.max_lag)
    if not age_s <= limits.max_age_s:  # an age that is not a number fails closed
        return Expired(age_s=age_s, limit_s=limits.max_age_s)
    return Fresh(lag=lag, span=span, age_s=age_s)
