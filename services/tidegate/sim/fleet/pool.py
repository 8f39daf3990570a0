"""What waits in the store, so ordered that choosing a batch looks at little more than the batch.

``core.batching.choose_batch`` decides; it is only shown what it could choose or drop. On one lineage that is:
everything beyond the budget, then the oldest versions' groups in order of arrival, up to a batch. The rest cannot come
before them.
"""

from collections import Counter, deque
from heapq import heapify, heappop, heappush

from tidegate.core.batching import Candidate, Choice, Drop, Group, choose_batch, judge_groups
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.staleness import LineageTree, StalenessLimits

# So few are shown as they are.
FEW_GROUPS = 16
# Entries of groups that have left may be as many as those that wait, and this many besides, before they are cleared.
LEFT_OVER_MAX = 4096


class Pool:
    """Whole groups that wait for a gradient. Bounded by the law where there is one; a lease or a drop frees places."""

    def __init__(self) -> None:
        """Empty."""
        self._groups: dict[int, Group] = {}
        self._by_version: dict[PolicyVersion, deque[int]] = {}
        self._by_start: list[tuple[float, int]] = []
        self._lineages: Counter[LineageName] = Counter()
        self.num_trajectories = 0

    def groups(self) -> list[Group]:
        """All that wait, in order of arrival."""
        return list(self._groups.values())

    def add(self, group: Group) -> None:
        """A whole group arrived or came back; it ran under one version, as actors swap weights between rollouts."""
        first = group[0]
        version = first.spans[0].version
        self._groups[first.seq] = group
        self._by_version.setdefault(version, deque()).append(first.seq)
        heappush(self._by_start, (first.started_at_s, first.seq))
        self._lineages[version.lineage] += 1
        self.num_trajectories += len(group)

    def choose(
        self,
        *,
        batch_size: int,
        head: PolicyVersion,
        tree: LineageTree,
        limits: StalenessLimits,
        now_s: float,
    ) -> Choice:
        """The next batch, taken out of the pool together with what is beyond the budget."""
        shown = self._shown(batch_size, head=head, limits=limits, now_s=now_s)
        choice = choose_batch(shown, batch_size=batch_size, head=head, tree=tree, limits=limits, now_s=now_s)
        self._remove(choice.batch)
        self._remove([drop.candidate for drop in choice.dropped])
        return choice

    def expire(
        self, *, head: PolicyVersion, tree: LineageTree, limits: StalenessLimits, now_s: float
    ) -> tuple[Drop, ...]:
        """Take out what is beyond the budget."""
        shown = self._shown(0, head=head, limits=limits, now_s=now_s)
        dropped = judge_groups(shown, head=head, tree=tree, limits=limits, now_s=now_s).dropped
        self._remove([drop.candidate for drop in dropped])
        return dropped

    def _shown(
        self, batch_size: int, *, head: PolicyVersion, limits: StalenessLimits, now_s: float
    ) -> list[Group]:
        if len(self._groups) <= FEW_GROUPS or len(self._lineages) > 1 or head.lineage not in self._lineages:
            return list(self._groups.values())
        shown = self._expired(limits, now_s=now_s)
        wanted = batch_size
        for version in sorted(self._by_version):
            is_stale = head.step - version.step > limits.max_lag
            if wanted <= 0 and not is_stale:
                break
            for seq in self._waiting(version):
                if seq in shown:  # too old, so it fills no batch
                    continue
                shown[seq] = self._groups[seq]
                if not is_stale:
                    wanted -= len(shown[seq])
                    if wanted <= 0:
                        break
        return list(shown.values())

    def _expired(self, limits: StalenessLimits, *, now_s: float) -> dict[int, Group]:
        found: dict[int, Group] = {}
        heap = self._by_start
        while heap and (heap[0][1] not in self._groups or not now_s - heap[0][0] <= limits.max_age_s):
            _, seq = heappop(heap)
            if seq in self._groups:
                found[seq] = self._groups[seq]
        return found

    def _waiting(self, version: PolicyVersion) -> list[int]:
        """Of one version, in order of arrival; forgets those that left."""
        line = self._by_version[version]
        while line and line[0] not in self._groups:
            line.popleft()
        if not line:
            del self._by_version[version]
        return [seq for seq in line if seq in self._groups]

    def _remove(self, candidates: tuple[Candidate, ...] | list[Candidate]) -> None:
        for candidate in candidates:
            # A group leaves whole, so the first of its members takes it along.
            if self._groups.pop(candidate.seq, None) is not None:
                lineage = candidate.spans[0].version.lineage
                self._lineages[lineage] -= 1
                if not self._lineages[lineage]:
                    del self._lineages[lineage]
        self.num_trajectories -= len(candidates)
        if len(self._by_start) > 2 * len(self._groups) + LEFT_OVER_MAX:
            self._by_start = [entry for entry in self._by_start if entry[1] in self._groups]
            heapify(self._by_start)
            self._by_version = {
                version: line for version in list(self._by_version) if (line := deque(self._waiting(version)))
            }
