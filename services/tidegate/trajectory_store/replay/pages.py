"""Which pages are resident: their slots, order of arrival, links to the next segment, and staleness.

Shapes: P slots.
"""

from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.ids import LineageName, TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import LineageTree, lag_offset
from tidegate.trajectory_store.replay.blocks import FrameBlocks
from tidegate.trajectory_store.replay.snapshot import PageHeader

NOWHERE = -1


class Page(msgspec.Struct, frozen=True, eq=False):
    """A resident segment; ``images`` has the blocks of each image tensor."""

    header: PageHeader
    trajectory_id: TrajectoryId
    spans: tuple[VersionSpan, ...]
    started_at_s: float
    images: tuple[FrameBlocks, ...]


class Pages:
    """Bounded by its slots: one is freed by ``remove``, the oldest page first."""

    def __init__(self, num_slots: int) -> None:
        """All slots are free."""
        self.next_P = np.full(num_slots, NOWHERE, np.int64)
        self.previous_P = np.full(num_slots, NOWHERE, np.int64)
        self.arrivals_P = np.zeros(num_slots, np.int64)
        self._lag_offsets_P = np.zeros(num_slots, np.int64)
        self._started_at_s_P = np.zeros(num_slots)
        self._pages: list[Page | None] = [None] * num_slots
        self._order: deque[int] = deque()
        self._free = deque(range(num_slots))
        self._slot_of_seq: dict[int, int] = {}
        # By stream and position, pages whose environments are known.
        self._slot_at: dict[tuple[int, int], int] = {}
        self._lineage: LineageName | None = None
        self._tree = LineageTree()
        self._offset_of: dict[tuple[VersionSpan, ...], int] = {}

    def __len__(self) -> int:
        return len(self._order)

    @property
    def num_free(self) -> int:
        """Slots without a page."""
        return len(self._free)

    @property
    def slots(self) -> list[int]:
        """Slots with a page, oldest first."""
        return list(self._order)

    def seqs(self) -> set[int]:
        """The resident trajectories, by their place in the ledger."""
        return set(self._slot_of_seq)

    def page(self, slot: int) -> Page:
        """The page in a slot."""
        page = self._pages[slot]
        assert page is not None, f"slot {slot} is empty"
        return page

    def slot_of(self, seq: int) -> int:
        """A trajectory's slot; ``NOWHERE`` when it is not resident."""
        return self._slot_of_seq.get(seq, NOWHERE)

    def oldest(self, count: int) -> list[int]:
        """The slots of the ``count`` pages that arrived first."""
        return [self._order[index] for index in range(min(count, len(self._order)))]

    # -- changing --------------------------------------------------------------------------------------------------

    def take_slot(self) -> int:
        """A free slot."""
        return self._free.popleft()

    def take_slots(self, slots: Iterable[int]) -> None:
        """The slots that a restart found pages in."""
        taken = set(slots)
        self._free = deque(slot for slot in self._free if slot not in taken)

    def add(self, slot: int, page: Page) -> None:
        """A page arrived: link it with the segments before and after it."""
        header = page.header
        self._pages[slot] = page
        self._order.append(slot)
        self._slot_of_seq[header.seq] = slot
        self.arrivals_P[slot] = header.arrival
        self._started_at_s_P[slot] = page.started_at_s
        self._lag_offsets_P[slot] = self._offset(page.spans)
        if header.stream:
            self._slot_at[header.stream, header.position] = slot
            self._link(self._slot_at.get((header.stream, header.position - 1), NOWHERE), slot)
            self._link(slot, self._slot_at.get((header.stream, header.position + 1), NOWHERE))

    def remove(self, slot: int) -> Page:
        """A page is evicted; its slot is free."""
        page = self.page(slot)
        header = page.header
        before, after = int(self.previous_P[slot]), int(self.next_P[slot])
        if before != NOWHERE:
            self.next_P[before] = NOWHERE
        if after != NOWHERE:
            self.previous_P[after] = NOWHERE
        self.next_P[slot] = self.previous_P[slot] = NOWHERE
        if self._slot_at.get((header.stream, header.position)) == slot:
            del self._slot_at[header.stream, header.position]
        self._pages[slot] = None
        self._order.remove(slot)
        del self._slot_of_seq[header.seq]
        self._free.append(slot)
        return page

    def _link(self, before: int, after: int) -> None:
        if before != NOWHERE and after != NOWHERE:
            self.next_P[before] = after
            self.previous_P[after] = before

    # -- staleness -------------------------------------------------------------------------------------------------

    def follow(self, lineage: LineageName, tree: LineageTree) -> None:
        """The head moves along another lineage from now on.

        Raises:
            UnknownVersionError: a resident trajectory has a version that is not in the tree.
        """
        self._lineage, self._tree = lineage, tree
        self._offset_of.clear()
        for slot in self._order:
            self._lag_offsets_P[slot] = self._offset(self.page(slot).spans)

    def _offset(self, spans: tuple[VersionSpan, ...]) -> int:
        """See ``core.staleness.lag_offset``; segments with the same versions share it."""
        if self._lineage is None:
            return 0
        known = self._offset_of.get(spans)
        if known is None:
            # Versions follow each other: what is not needed any more is cleared before it outgrows the pages.
            if len(self._offset_of) > 2 * len(self._pages):
                self._offset_of.clear()
            known = self._offset_of[spans] = lag_offset(spans, self._lineage, self._tree)
        return known

    def lags(self, slots_B: NDArray[np.int64], *, step: int) -> NDArray[np.int64]:
        """Versions that these pages are behind the head at ``step`` of the lineage that is followed."""
        return np.maximum(self._lag_offsets_P[slots_B] + step, 0)

    def outdated(
        self, slots_B: NDArray[np.int64], *, step: int, max_lag: int, max_age_s: float, now_s: float
    ) -> NDArray[np.bool_]:
        """Which of these pages are beyond the staleness budget; an age that is not a number is."""
        ages_B = now_s - self._started_at_s_P[slots_B]
        return (self.lags(slots_B, step=step) > max_lag) | ~(ages_B <= max_age_s)

    def continued_by(self, slot: int, *, pages_max: int) -> Iterable[int]:
        """A page and the next segments of its environments, at most ``pages_max`` of them."""
        for _ in range(pages_max):
            yield slot
            slot = int(self.next_P[slot])
            if slot == NOWHERE:
                return

    def before(self, slot: int, *, pages_max: int) -> Iterable[int]:
        """The segments before a page, the nearest first, at most ``pages_max`` of them."""
        for _ in range(pages_max):
            slot = int(self.previous_P[slot])
            if slot == NOWHERE:
                return
            yield slot
