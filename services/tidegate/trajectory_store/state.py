"""State derived from the ledger, in memory: what waits, what is leased, and the counts. Rebuilt at every start."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Literal

import msgspec

from tidegate.core.audit import LedgerTotals
from tidegate.core.batching import Candidate, Choice, Drop, Group, judge_groups
from tidegate.core.ids import GroupId, PolicyVersion, TrajectoryId
from tidegate.core.records import DropReason
from tidegate.core.staleness import LineageTree, StalenessLimits
from tidegate.core.waiting import WholeGroups

RowState = Literal["available", "leased", "trained", "dropped"]

_group_of = attrgetter("group_id")


class BatchLease(msgspec.Struct, frozen=True):
    """A batch that a learner holds. It ends with its commit, its release, or the next lineage.

    ``units``: of a sampled batch the ids of its units in its order, as ``replay.uses`` encodes them; its ``candidates``
    are those of its trajectories that no gradient had used. ``max_lag``: the budget that it was judged by (versions);
    None where an older program leased it.
    """

    batch_id: str
    version: PolicyVersion
    learner_id: str
    candidates: tuple[Candidate, ...]
    max_lag: int | None = None
    units: bytes = b""


class Batch(msgspec.Struct, frozen=True, eq=False):
    """A leased batch as it is sent: whole frames, and which of their trajectories belong to it.

    ``ages_s``: of each trajectory, seconds since its rollout started, by the store's clock.
    """

    batch_id: str
    frames: list[bytes]
    trajectory_ids: list[TrajectoryId]
    ages_s: list[float]


def batch_of(lease: BatchLease, frames: list[bytes], *, now_s: float) -> Batch:
    """A lease as it is sent, with the frames that its trajectories lie in."""
    return Batch(
        batch_id=lease.batch_id,
        frames=frames,
        trajectory_ids=[candidate.trajectory_id for candidate in lease.candidates],
        ages_s=[now_s - candidate.started_at_s for candidate in lease.candidates],
    )


class Location(msgspec.Struct, frozen=True, gc=False):
    """Where a frame lies in the segments."""

    segment: int
    offset: int
    size: int


class LiveFrames:
    """The frames that available and leased trajectories lie in; the bytes of others are not kept in memory."""

    def __init__(self) -> None:
        self._locations: dict[int, Location] = {}
        self._num_live: dict[int, int] = {}
        self.num_bytes = 0

    def add(self, frame_id: int, location: Location, *, num_live: int) -> None:
        """A frame with ``num_live`` trajectories that wait for a gradient."""
        self._locations[frame_id] = location
        self._num_live[frame_id] = num_live
        self.num_bytes += location.size

    def finish(self, candidates: Iterable[Candidate]) -> list[Location]:
        """Trajectories became terminal; returns the frames that no trajectory needs any more."""
        finished: list[Location] = []
        for candidate in candidates:
            self._num_live[candidate.frame_id] -= 1
            if self._num_live[candidate.frame_id] == 0:
                del self._num_live[candidate.frame_id]
                location = self._locations.pop(candidate.frame_id)
                self.num_bytes -= location.size
                finished.append(location)
        return finished

    def location(self, frame_id: int) -> Location:
        """Where a live trajectory's frame lies."""
        return self._locations[frame_id]

    def segments(self) -> set[int]:
        """The segments that hold a live frame."""
        return {location.segment for location in self._locations.values()}


class Pool:
    """Available trajectories by group. Bounded by the residency limits: a slot is freed by a lease or a drop."""

    def __init__(self) -> None:
        self._whole = WholeGroups()
        self._partial: dict[GroupId, dict[int, Candidate]] = {}
        # Of each trajectory the first member of its whole group; None while its group waits for members.
        self._first_of: dict[int, int | None] = {}

    def __len__(self) -> int:
        return len(self._first_of)

    def __iter__(self) -> Iterator[Candidate]:
        for group in self.groups():
            yield from group

    @property
    def num_whole(self) -> int:
        """Trajectories that belong to whole groups: those a batch can be made of."""
        return self._whole.num_trajectories

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Trajectories arrived, came back from a lease, or were revived.

        The first ``group_size`` members that wait together make a whole group.
        """
        for group_id, arriving in groupby(candidates, key=_group_of):
            members = tuple(arriving)
            if group_id not in self._partial and _is_whole(members):
                self._keep(members)
                continue
            for candidate in members:
                self._wait_for_siblings(candidate)

    def _wait_for_siblings(self, candidate: Candidate) -> None:
        waiting = self._partial.setdefault(candidate.group_id, {})
        waiting[candidate.seq] = candidate
        self._first_of[candidate.seq] = None
        if len(waiting) < candidate.group_size:
            return
        members = tuple(waiting[seq] for seq in sorted(waiting)[: candidate.group_size])
        self._keep(members)
        for member in members:
            del waiting[member.seq]
        if not waiting:
            del self._partial[candidate.group_id]

    def _keep(self, members: Group) -> None:
        """A whole group, by order of arrival."""
        self._whole.add(members)
        for member in members:
            self._first_of[member.seq] = members[0].seq

    def remove(self, candidates: Iterable[Candidate]) -> None:
        """Trajectories were leased or dropped; what is left of a broken group waits for the rest."""
        broken: dict[int, Group] = {}
        for candidate in candidates:
            first = self._first_of.pop(candidate.seq)
            if first is None:
                waiting = self._partial[candidate.group_id]
                del waiting[candidate.seq]
                if not waiting:
                    del self._partial[candidate.group_id]
            elif first not in broken:
                broken[first] = self._whole.remove(first)
        for members in broken.values():
            for member in members:
                if member.seq in self._first_of:
                    self._wait_for_siblings(member)

    def choose(
        self,
        *,
        batch_size: int,
        head: PolicyVersion,
        tree: LineageTree,
        limits: StalenessLimits,
        now_s: float,
    ) -> Choice:
        """The next batch from whole groups (see ``core.batching.choose_batch``); nothing is removed yet."""
        return self._whole.choose(batch_size=batch_size, head=head, tree=tree, limits=limits, now_s=now_s)

    def overdue(
        self, *, head: PolicyVersion, tree: LineageTree, limits: StalenessLimits, now_s: float
    ) -> list[Drop]:
        """What is beyond the budget, groups that wait for members included; nothing is removed yet."""
        partial = judge_groups(self._partial_groups(), head=head, tree=tree, limits=limits, now_s=now_s)
        whole = self._whole.overdue(head=head, tree=tree, limits=limits, now_s=now_s)
        return [*whole, *partial.dropped]

    def _partial_groups(self) -> list[Group]:
        return [tuple(waiting.values()) for waiting in self._partial.values()]

    def groups(self) -> list[Group]:
        """All groups, those that still wait for members included."""
        return [*self._whole.groups(), *self._partial_groups()]

    def waiting(self, seqs: Iterable[int]) -> list[Candidate]:
        """Which of these trajectories are available."""
        found: list[Candidate] = []
        for seq in seqs:
            first = self._first_of.get(seq)
            if first is not None:
                found += [member for member in self._whole.group(first) if member.seq == seq]
        return found

    def siblings(self, candidate: Candidate) -> Group:
        """The whole group that a candidate is in, and what of its group id waits for members; itself included."""
        first = self._first_of.get(candidate.seq)
        whole = () if first is None else self._whole.group(first)
        return (*whole, *self._partial.get(candidate.group_id, {}).values())


def _is_whole(members: Group) -> bool:
    """Whether these are all of their group, in order of arrival."""
    size = len(members)
    if size == 1:
        return members[0].group_size == 1
    sizes, seqs = [member.group_size for member in members], [member.seq for member in members]
    return sizes.count(size) == size and seqs == sorted(seqs)


class Tally:
    """Counts by state, kept along with each transaction; ``accepted`` ones have or had a payload here."""

    def __init__(self) -> None:
        self.accepted = 0
        self.available = 0
        self.leased = 0
        self.trained_by_lag: Counter[int] = Counter()
        self.dropped: Counter[DropReason] = Counter()
        self.duplicates = 0
        self.quarantined = 0
        self.revived = 0
        self.leases_expired = 0
        self.max_lag_trained = 0

    @property
    def trained(self) -> int:
        """Trajectories trained in the surviving lineage."""
        return self.trained_by_lag.total()

    def note_trained(self, lags: Iterable[int]) -> None:
        """Trajectories were trained at these lags."""
        for lag in lags:
            self.trained_by_lag[lag] += 1
            self.max_lag_trained = max(self.max_lag_trained, lag)

    def totals(self, *, trained_twice: int) -> LedgerTotals:
        """The right-hand side of the audit."""
        return LedgerTotals(
            available=self.available,
            leased=self.leased,
            trained=self.trained,
            dropped={reason: count for reason, count in self.dropped.items() if count},
            duplicates=self.duplicates,
            quarantined=self.quarantined,
            trained_twice=trained_twice,
            max_lag_trained=self.max_lag_trained,
            trained_by_lag={lag: count for lag, count in sorted(self.trained_by_lag.items()) if count},
            revived=self.revived,
        )
