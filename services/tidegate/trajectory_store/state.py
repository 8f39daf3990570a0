"""What the ledger implies, kept in memory: who waits, who is leased, and the counts. Rebuilt from it at every start."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Literal

import msgspec

from tidegate.core.audit import LedgerTotals
from tidegate.core.batching import Candidate, Group
from tidegate.core.ids import GroupId, PolicyVersion
from tidegate.core.records import DropReason

RowState = Literal["available", "leased", "trained", "dropped"]

GroupKey = tuple[GroupId, int]
_group_of = attrgetter("group_id")


class Lease(msgspec.Struct, frozen=True):
    """A batch that a learner holds. It ends with its commit, its release, or the next lineage."""

    batch_id: str
    version: PolicyVersion
    learner_id: str
    candidates: tuple[Candidate, ...]


class Location(msgspec.Struct, frozen=True, gc=False):
    """Where a frame lies in the segments."""

    segment: int
    offset: int
    size: int


class LiveFrames:
    """The frames that available and leased trajectories lie in; the others' bytes are nobody's concern in memory."""

    def __init__(self) -> None:
        """None."""
        self._locations: dict[int, Location] = {}
        self._num_live: dict[int, int] = {}
        self.num_bytes = 0

    def add(self, frame_id: int, location: Location, *, num_live: int) -> None:
        """A frame with ``num_live`` trajectories that wait for a gradient."""
        self._locations[frame_id] = location
        self._num_live[frame_id] = num_live
        self.num_bytes += location.size

    def finish(self, candidates: Iterable[Candidate]) -> list[Location]:
        """Trajectories became terminal; returns the frames that nobody waits for any more."""
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
        """Empty."""
        self._whole: dict[GroupKey, Group] = {}
        self._partial: dict[GroupId, dict[int, Candidate]] = {}
        self._key_of: dict[int, GroupKey | None] = {}
        self._num_whole = 0

    def __len__(self) -> int:
        return len(self._key_of)

    def __iter__(self) -> Iterator[Candidate]:
        for group in self.groups():
            yield from group

    @property
    def num_whole(self) -> int:
        """Trajectories that belong to whole groups: those a batch can be made of."""
        return self._num_whole

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
                self._partial.setdefault(group_id, {})[candidate.seq] = candidate
                self._key_of[candidate.seq] = None
                self._complete(group_id, candidate.group_size)

    def _complete(self, group_id: GroupId, group_size: int) -> None:
        waiting = self._partial[group_id]
        if len(waiting) < group_size:
            return
        members = tuple(waiting[seq] for seq in sorted(waiting)[:group_size])
        self._keep(members)
        for member in members:
            del waiting[member.seq]
        if not waiting:
            del self._partial[group_id]

    def _keep(self, members: Group) -> None:
        """A whole group, by order of arrival."""
        key = (members[0].group_id, members[0].seq)
        self._whole[key] = members
        self._num_whole += len(members)
        for member in members:
            self._key_of[member.seq] = key

    def remove(self, candidates: Iterable[Candidate]) -> None:
        """Trajectories were leased or dropped; what is left of a broken group waits for the rest."""
        for candidate in candidates:
            key = self._key_of.pop(candidate.seq)
            if key is None:
                waiting = self._partial[candidate.group_id]
                del waiting[candidate.seq]
                if not waiting:
                    del self._partial[candidate.group_id]
                continue
            members = self._whole.pop(key)
            self._num_whole -= len(members)
            left = {member.seq: member for member in members if member.seq != candidate.seq}
            for seq in left:
                self._key_of[seq] = None
            if left:
                self._partial.setdefault(candidate.group_id, {}).update(left)
                self._complete(candidate.group_id, candidate.group_size)

    def whole_groups(self) -> list[Group]:
        """Groups that a batch can be made of."""
        return list(self._whole.values())

    def groups(self) -> list[Group]:
        """All groups, those that still wait for members included."""
        return [*self._whole.values(), *(tuple(waiting.values()) for waiting in self._partial.values())]

    def siblings(self, candidate: Candidate) -> Group:
        """What waits of a candidate's group id, itself included if it waits."""
        whole = [group for key, group in self._whole.items() if key[0] == candidate.group_id]
        waiting = self._partial.get(candidate.group_id, {})
        return (*(member for group in whole for member in group), *waiting.values())


def _is_whole(members: Group) -> bool:
    """Whether these are all of their group, in order of arrival."""
    size = len(members)
    return all(member.group_size == size for member in members) and all(
        earlier.seq < later.seq for earlier, later in pairwise(members)
    )


class Tally:
    """Counts by state, kept along with each transaction; ``accepted`` ones have or had a payload here."""

    def __init__(self) -> None:
        """An empty ledger."""
        self.accepted = 0
        self.available = 0
        self.leased = 0
        self.trained_by_lag: Counter[int] = Counter()
        self.dropped: Counter[DropReason] = Counter()
        self.duplicates = 0
        self.quarantined = 0
        self.revived = 0
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
