"""Whole groups that wait for a gradient, so ordered that choosing a batch reads little more than the batch.

``core.batching`` decides; this module passes it only the groups that it could choose or drop. While all waiting groups
are of the learner's lineage, these are the groups beyond the budget, then those of the oldest versions in order of
arrival, up to a batch. No other group can come before them.
"""

from collections import Counter
from heapq import heapify, heappop, heappush
from typing import TypeVar

import msgspec

from tidegate.core.batching import Choice, Drop, Group, choose_batch, judge_groups
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.staleness import LineageTree, StalenessLimits

Key = TypeVar("Key")

# Entries of removed groups may exceed those of waiting groups by this many before they are cleared.
LEFT_OVER_MAX = 4096


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    """A group, the first and the last of its versions in order, and when the first of its members was started."""

    members: Group
    oldest: PolicyVersion
    newest: PolicyVersion
    started_at_s: float


class WholeGroups:
    """Groups by order of arrival, by version and by age. Bounded by the caller that adds; ``remove`` frees a place.

    A group is named by the ``seq`` of its first member.
    """

    def __init__(self) -> None:
        self._groups: dict[int, _Waiting] = {}
        self._by_version: dict[PolicyVersion, set[int]] = {}
        self._by_start: list[tuple[float, int]] = []
        self._lineages: Counter[LineageName] = Counter()
        self._sizes: Counter[int] = Counter()
        # Of all groups there ever were; a lineage is one restart of the learner.
        self._newest_step: dict[LineageName, int] = {}
        self.num_trajectories = 0

    def __len__(self) -> int:
        return len(self._groups)

    def groups(self) -> list[Group]:
        """All that wait, in the order in which they were added."""
        return [waiting.members for waiting in self._groups.values()]

    def group(self, first: int) -> Group:
        """The members of a group that waits."""
        return self._groups[first].members

    def add(self, members: Group) -> None:
        """Add a whole group that arrived or was released."""
        versions = [span.version for member in members for span in member.spans]
        waiting = _Waiting(
            members=members,
            oldest=min(versions),
            newest=max(versions),
            started_at_s=min([member.started_at_s for member in members]),
        )
        first = members[0].seq
        self._groups[first] = waiting
        self._by_version.setdefault(waiting.oldest, set()).add(first)
        heappush(self._by_start, (waiting.started_at_s, first))
        # Versions sort by lineage, then by step: if the first and the last are of one lineage, all are.
        self._lineages[waiting.oldest.lineage] += 1
        self._lineages[waiting.newest.lineage] += 1
        lineage, step = waiting.newest.lineage, waiting.newest.step
        self._newest_step[lineage] = max(step, self._newest_step.get(lineage, 0))
        self._sizes[len(members)] += 1
        self.num_trajectories += len(members)

    def remove(self, first: int) -> Group:
        """Remove a group that is leased or dropped, or lost a member; returns its members."""
        waiting = self._groups.pop(first)
        of_version = self._by_version[waiting.oldest]
        of_version.discard(first)
        if not of_version:
            del self._by_version[waiting.oldest]
        _count_down(self._lineages, waiting.oldest.lineage)
        _count_down(self._lineages, waiting.newest.lineage)
        _count_down(self._sizes, len(waiting.members))
        self.num_trajectories -= len(waiting.members)
        if len(self._by_start) > 2 * len(self._groups) + LEFT_OVER_MAX:
            self._by_start = [(waiting.started_at_s, first) for first, waiting in self._groups.items()]
            heapify(self._by_start)
        return waiting.members

    def choose(
        self,
        *,
        batch_size: int,
        head: PolicyVersion,
        tree: LineageTree,
        limits: StalenessLimits,
        now_s: float,
    ) -> Choice:
        """The next batch, and what is beyond the budget (see ``choose_batch``); nothing is removed yet."""
        shown = self._shown(batch_size, head=head, limits=limits, now_s=now_s)
        return choose_batch(shown, batch_size=batch_size, head=head, tree=tree, limits=limits, now_s=now_s)

    def overdue(
        self, *, head: PolicyVersion, tree: LineageTree, limits: StalenessLimits, now_s: float
    ) -> tuple[Drop, ...]:
        """What is beyond the budget; nothing is removed yet."""
        shown = self._shown(0, head=head, limits=limits, now_s=now_s)
        return judge_groups(shown, head=head, tree=tree, limits=limits, now_s=now_s).dropped

    def _shown(
        self, batch_size: int, *, head: PolicyVersion, limits: StalenessLimits, now_s: float
    ) -> list[Group]:
        if not self._is_plain(head):
            return self.groups()
        shown = {first: self._groups[first].members for first in self._too_old(limits, now_s=now_s)}
        wanted = batch_size
        for version in sorted(self._by_version):
            is_stale = head.step - version.step > limits.max_lag
            if wanted <= 0 and not is_stale:
                break
            for first in sorted(self._by_version[version]):
                if first in shown:  # too old, so it fills no batch
                    continue
                shown[first] = self._groups[first].members
                if not is_stale:
                    wanted -= len(shown[first])
                    if wanted <= 0:
                        break
        return list(shown.values())

    def _is_plain(self, head: PolicyVersion) -> bool:
        """Whether lag is a difference of steps, and equal groups fill a batch whichever they are."""
        return (
            self._lineages.keys() == {head.lineage}
            and self._newest_step[head.lineage] <= head.step
            and len(self._sizes) == 1
        )

    def _too_old(self, limits: StalenessLimits, *, now_s: float) -> list[int]:
        found: set[int] = set()
        heap = self._by_start
        while heap and (heap[0][1] not in self._groups or not now_s - heap[0][0] <= limits.max_age_s):
            _, first = heappop(heap)
            if first in self._groups:
                found.add(first)
        # They stay until they are removed, which may fail.
        for first in found:
            heappush(heap, (self._groups[first].started_at_s, first))
        return sorted(found)


def _count_down(counter: Counter[Key], key: Key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
