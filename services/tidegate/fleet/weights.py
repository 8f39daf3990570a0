"""Published versions and their arrival times: announced to all at once, then pulled level by level of a tree."""

from bisect import bisect_right
from collections.abc import Callable
from math import inf

from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import LineageTree
from tidegate.fleet.event_queue import EventQueue
from tidegate.fleet.plan import FleetPlan


class FleetWeights:
    """Published versions. A pull overlaps rollouts, and pulls of following versions each other.

    Versions grow by one an update and are kept, as times and names, for the length of a run.
    """

    def __init__(
        self, plan: FleetPlan, events: EventQueue, *, announce: Callable[[PolicyVersion, LineageTree], None]
    ) -> None:
        """``announce`` is called when a version reaches the task queue and the actors."""
        self._plan = plan
        self._events = events
        self._announce = announce
        self._times_s: list[float] = []
        self._versions: list[PolicyVersion] = []
        self._waiting: list[tuple[PolicyVersion, LineageTree]] = []
        self._died_at_s = inf
        self.slowdown = 1.0

    @property
    def alive(self) -> bool:
        """Whether it publishes and serves."""
        return self._died_at_s == inf

    @property
    def num_waiting(self) -> int:
        """Versions published while it was down, of which it keeps the newest."""
        return len(self._waiting)

    def delay_s(self, depth: int) -> float:
        """From a publish until a node at ``depth`` serves it."""
        return (self._plan.announce_s + depth * self._plan.pull_s) * self.slowdown

    def publish(self, version: PolicyVersion, tree: LineageTree) -> None:
        """Accept a version from the learner; while it is down only the newest is kept."""
        if not self.alive:
            self._waiting = [(version, tree)]
            return
        if not self._versions:
            # Every actor has the first policy before the run starts.
            self._times_s.append(-inf)
            self._versions.append(version)
            self._announce(version, tree)
            return
        self._times_s.append(self._events.now_s)
        self._versions.append(version)
        delay_s = self._plan.announce_s * self.slowdown
        if delay_s > 0:
            self._events.after(delay_s, self._announced, (version, tree))
        else:
            self._announce(version, tree)

    def newest_at(self, depth: int, *, at_least: int = 0) -> int:
        """Number of the newest version that a node at ``depth`` can serve now; never older than it served before."""
        now_s = min(self._events.now_s, self._died_at_s)
        # Includes what arrives at this moment, in spite of rounding.
        found = bisect_right(self._times_s, now_s - self.delay_s(depth) + 1e-9) - 1
        return max(found, at_least)

    def version(self, number: int) -> PolicyVersion:
        """The ``number``-th version that was published."""
        return self._versions[number]

    def newest(self) -> int:
        """Number of the newest version; -1 before the first."""
        return len(self._versions) - 1

    def arrival_s(self, number: int, depth: int) -> float:
        """When a node at ``depth`` serves the ``number``-th version, without faults in between."""
        return self._times_s[number] + self.delay_s(depth)

    def stop(self) -> None:
        """It fails: nothing is announced or pulled until ``restart``."""
        self._died_at_s = min(self._died_at_s, self._events.now_s)

    def restart(self) -> None:
        """Publish what waited; interrupted pulls start again."""
        if self.alive:
            return
        begun = bisect_right(self._times_s, self._died_at_s - self.delay_s(1))
        self._times_s[begun:] = [self._events.now_s] * (len(self._times_s) - begun)
        self._died_at_s = inf
        waiting, self._waiting = self._waiting, []
        for version, tree in waiting:
            self.publish(version, tree)

    def _announced(self, argument: tuple[PolicyVersion, LineageTree]) -> None:
        self._announce(*argument)
