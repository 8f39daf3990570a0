"""The replay buffer: resident segments, drawn by unit. Synchronous; one thread owns it; the ledger is its owner's.

The order of a change is the owner's too: what is evicted is dropped in the ledger first, a page is whole before the
ledger names it, and uses are written there before they are counted here.

A unit's id is ``seq * units + place``: its trajectory's place in the ledger and its own in the page. Ids are never used
again, so that an update may name units that are evicted.

Shapes: B units, U units of a page.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.algorithms.frame_stacks import FRAMES
from tidegate.algorithms.replay_units import complete_units, sequence_starts
from tidegate.core.errors import StaleFolderError
from tidegate.core.ids import LineageName, TrajectoryId
from tidegate.core.records import Array, VersionSpan
from tidegate.core.spaces import PRIORITIES
from tidegate.core.staleness import LineageTree, StalenessLimits
from tidegate.trajectory_store.replay.blocks import BlockFiles, encode_blocks, parse_blocks
from tidegate.trajectory_store.replay.columns import Columns, Ring
from tidegate.trajectory_store.replay.offers import Offers
from tidegate.trajectory_store.replay.page_layout import PageLayout, check_layout, layout_of
from tidegate.trajectory_store.replay.pages import NOWHERE, Page, Pages
from tidegate.trajectory_store.replay.selectors import SelectorSettings, usable_priorities
from tidegate.trajectory_store.replay.snapshot import (
    FORMAT,
    PageHeader,
    PageHeaders,
    StoredLayout,
    hash_of,
    read_layout,
    write_layout,
)
from tidegate.trajectory_store.replay.windows import FrameReferences, UnitReader

PRIORITIES_FILE = "priorities.ring"


class BufferSettings(msgspec.Struct, frozen=True):
    """What a buffer holds and offers (``config.ReplayConfig``, with the sizes of the workload).

    ``horizon``: steps of a transition or sequence. ``period``: steps between starts of sequences; 0 for transitions.
    ``block_file_bytes``: size of a file of images. ``flush``: survive a power cut.
    """

    num_slots: int
    num_steps: int
    num_envs: int
    horizon: int
    period: int
    uses_max: int
    selector: SelectorSettings
    block_file_bytes: int
    flush: bool = False

    @property
    def units(self) -> int:
        """Leaves of a page."""
        return self.num_steps * self.num_envs


class Resident(msgspec.Struct, frozen=True):
    """What the ledger knows of a trajectory that may be resident."""

    seq: int
    trajectory_id: TrajectoryId
    spans: tuple[VersionSpan, ...]
    started_at_s: float


class Segment(msgspec.Struct, frozen=True, eq=False):
    """A segment to insert; ``stream`` and ``position`` as in ``core.records.Trajectory``."""

    resident: Resident
    stream: str
    position: int
    tensors: Mapping[str, Array]


class Drawn(msgspec.Struct, frozen=True, eq=False):
    """Units of one draw. ``num_open``: units that could be drawn."""

    ids: NDArray[np.int64]
    leaves: NDArray[np.int64]
    slots: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    num_open: int


class PriorityReport(msgspec.Struct, frozen=True):
    """What became of priorities: set, refused because they are not finite, ignored because their unit is evicted."""

    num_set: int = 0
    num_refused: int = 0
    num_ignored: int = 0


class ReplayBuffer:
    """Bounded by its slots; a full one takes a page in after ``evict``."""

    def __init__(self, folder: Path, settings: BufferSettings) -> None:
        """Nothing is opened before ``recover`` or the first segment."""
        self._folder = folder
        self._settings = settings
        self._layout: PageLayout | None = None
        self.pages = Pages(settings.num_slots)
        self.num_refused = 0

    # -- opening ---------------------------------------------------------------------------------------------------

    def recover(self, known: Callable[[Sequence[int]], Mapping[int, Resident]]) -> int:
        """Find the pages of an earlier process; returns how many were torn.

        ``known``: which of these trajectories (by seq) the ledger has and did not drop.

        Raises:
            StaleFolderError: the folder holds segments of another workload, or another number of them.
            CorruptionError: the file that describes the others cannot be read.
        """
        stored = read_layout(self._folder)
        if stored is None:
            return 0
        settings = self._settings
        sizes = (stored.layout.num_steps, stored.layout.num_envs, stored.num_slots)
        if sizes != (settings.num_steps, settings.num_envs, settings.num_slots):
            raise StaleFolderError(
                "The replay buffer holds {} x {} steps in each of {} segments".format(*sizes),
                why=f"the run file asks for {settings.num_steps} x {settings.num_envs} in {settings.num_slots}",
                fix="restore workload.unroll_length, workload.num_envs and trajectory_store.replay.capacity, or start"
                " in a new run folder",
            )
        self._open(stored.layout)
        self._layout = stored.layout
        residents = known(self._headers.seqs())
        found, num_torn = self._headers.recover(
            self._columns,
            self._blocks,
            num_images=len(stored.layout.images),
            known={seq: hash_of(item.trajectory_id) for seq, item in residents.items()},
        )
        self.pages.take_slots(page.slot for page in found)
        for page in found:
            item = residents[page.header.seq]
            self.pages.add(
                page.slot, Page(page.header, item.trajectory_id, item.spans, item.started_at_s, page.images)
            )
            self.offers.resume_page(page.slot, arrival=page.header.arrival)
        for page in found:
            self._complete(page.slot)
        return num_torn

    def _open(self, layout: PageLayout) -> None:
        settings = self._settings
        self._columns = Columns(self._folder, layout, num_slots=settings.num_slots)
        self._blocks = BlockFiles(self._folder, file_bytes=settings.block_file_bytes)
        self._headers = PageHeaders(self._folder, num_slots=settings.num_slots)
        self._priorities = Ring(
            self._folder / PRIORITIES_FILE, (settings.num_slots * settings.units,), np.float32
        )
        self.offers = Offers(
            self._priorities.values,
            units=settings.units,
            settings=settings.selector,
            uses_max=settings.uses_max,
        )
        self._reader = UnitReader(layout, self._columns, self.pages.next_P, horizon=settings.horizon)

    def close(self) -> None:
        """Close every file; what was inserted stays."""
        if self._layout is not None:
            self._blocks.close()

    def flush(self) -> None:
        """Make pages and priorities durable against a power cut."""
        if self._layout is not None:
            self._columns.flush()
            self._headers.flush()
            self._priorities.flush()

    @property
    def layout(self) -> PageLayout | None:
        """What a page holds; None before the first segment."""
        return self._layout

    @property
    def drawable(self) -> float:
        """How many samples could be drawn now."""
        return self.offers.drawable if self._layout is not None else 0

    @property
    def num_open(self) -> int:
        """How many units could be drawn now."""
        return self.offers.num_open if self._layout is not None else 0

    @property
    def newest_arrival(self) -> int:
        """Steps inserted up to and with the newest page."""
        pages = [self.pages.page(slot).header.arrival for slot in self.pages.slots]
        return max(pages) + self._settings.units if pages else 0

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files."""
        if self._layout is None:
            return 0
        return self._columns.num_bytes + self._blocks.num_bytes + self._priorities.num_bytes

    # -- inserting -------------------------------------------------------------------------------------------------

    def check(self, tensors: Mapping[str, Array], *, name: str) -> None:
        """Check that a segment can be inserted.

        Raises:
            RecordError: its tensors are not those of a segment of this run.
        """
        settings = self._settings
        if self._layout is not None:
            check_layout(tensors, self._layout, name=name)
            return
        layout = layout_of(tensors, name=name)
        expected = msgspec.structs.replace(layout, num_steps=settings.num_steps, num_envs=settings.num_envs)
        check_layout(tensors, expected, name=name)

    def must_evict(self, count: int) -> list[int]:
        """The pages (by seq) that have to go before ``count`` segments are inserted: the oldest."""
        slots = self.pages.oldest(max(0, count - self.pages.num_free))
        return [self.pages.page(slot).header.seq for slot in slots]

    def evict(self, seqs: Iterable[int]) -> None:
        """Free the slots of pages; units that waited for one of them are not complete any more."""
        for seq in seqs:
            slot = self.pages.slot_of(seq)
            if slot == NOWHERE:
                continue
            waiting = list(self.pages.before(slot, pages_max=self._pages_back))
            page = self.pages.remove(slot)
            self._headers.clear(slot)
            self.offers.end_page(slot)
            if page.header.blocks is not None:
                self._blocks.release(page.header.blocks)
            for other in waiting:
                self._complete(other)

    def insert(self, segment: Segment, *, arrival: int) -> int:
        """Write a checked segment into a free slot; returns how many units became complete for the first time.

        ``arrival``: steps inserted before it.

        Raises:
            OSError: the disk is full or broken; the buffer is as before.
        """
        if self._layout is None:
            layout = layout_of(segment.tensors, name=segment.resident.trajectory_id)
            self._open(layout)
            stored = StoredLayout(FORMAT, self._settings.num_slots, layout)
            write_layout(self._folder, stored, durable=self._settings.flush)
            self._layout = layout
        item, tensors, settings = segment.resident, segment.tensors, self._settings
        images = [tensors[f"{FRAMES}{image.name}"] for image in self._layout.images]
        data = encode_blocks(images)
        place = self._blocks.append(data, flush=settings.flush) if images else None
        slot = self.pages.take_slot()
        self._columns.write(slot, tensors)
        header = PageHeader(
            seq=item.seq,
            identity=hash_of(item.trajectory_id),
            stream=hash_of(segment.stream),
            position=segment.position,
            arrival=arrival,
            blocks=place,
        )
        self._headers.write(slot, header, columns=self._columns, blocks=memoryview(data))
        blocks = () if place is None else parse_blocks(memoryview(data), place, num_images=len(images))
        self.pages.add(slot, Page(header, item.trajectory_id, item.spans, item.started_at_s, blocks))
        first = tensors.get(PRIORITIES)
        first_U = None if first is None else np.ascontiguousarray(first.T, np.float32).reshape(-1)
        self.num_refused += self.offers.begin_page(slot, arrival=arrival, first_priorities_U=first_U)
        num_new = self._complete(slot)
        for other in self.pages.before(slot, pages_max=self._pages_back):
            num_new += self._complete(other)
        if settings.flush:
            self.flush()
        return num_new

    @property
    def _pages_back(self) -> int:
        """How many segments before a page may have units that reach into it."""
        return -(-(self._settings.horizon - 1) // self._settings.num_steps)

    def _complete(self, slot: int) -> int:
        """Find which units of a page are complete; returns how many are so for the first time."""
        settings = self._settings
        slots = list(self.pages.continued_by(slot, pages_max=1 + self._pages_back))
        valid_NR = np.concatenate([self._columns.page("valid", each) for each in slots], axis=1) != 0
        ended_NR = np.concatenate([self._columns.page("terminated", each) for each in slots], axis=1) != 0
        ended_NR |= np.concatenate([self._columns.page("truncated", each) for each in slots], axis=1) != 0
        complete_NT = complete_units(
            valid_NR, ended_NR, num_steps=settings.num_steps, horizon=settings.horizon
        )
        if settings.period:
            assert self._layout is not None
            num_states = self._layout.num_states()
            period = settings.num_steps // num_states if num_states else settings.period
            complete_NT &= sequence_starts(valid_NR[:, : settings.num_steps], period=period)
        return self.offers.set_complete(slot, complete_NT.reshape(-1))

    # -- sampling --------------------------------------------------------------------------------------------------

    def draw(
        self, count: int, *, step: int, limits: StalenessLimits, rng: np.random.Generator, now_s: float
    ) -> Drawn | None:
        """``count`` units inside the budget of the head at ``step``; None when there are not enough.

        What left the budget is hidden on the way; the caller evicts it. Nothing is reserved.
        """
        while self.drawable >= count:
            num_open = self.offers.num_open
            leaves, probabilities = self.offers.draw(count, rng)
            slots = leaves // self._settings.units
            outdated = self.pages.outdated(
                slots, step=step, max_lag=limits.max_lag, max_age_s=limits.max_age_s, now_s=now_s
            )
            if not outdated.any():
                return Drawn(self._ids(leaves, slots), leaves, slots, probabilities, num_open)
            for slot in np.unique(slots[outdated]).tolist():
                self.offers.hide_page(slot)
        return None

    def drawn_again(
        self, ids: NDArray[np.int64], *, step: int, limits: StalenessLimits, now_s: float
    ) -> Drawn | None:
        """Units that were drawn before, as they are now; None when one is evicted, incomplete or outdated."""
        if self._layout is None:
            return None
        leaves = self.leaves_of(ids)
        if (leaves == NOWHERE).any() or not self.offers.are_complete(leaves):
            return None
        slots = leaves // self._settings.units
        outdated = self.pages.outdated(
            slots, step=step, max_lag=limits.max_lag, max_age_s=limits.max_age_s, now_s=now_s
        )
        if outdated.any():
            return None
        return Drawn(ids, leaves, slots, self.offers.shares(leaves), self.offers.num_open)

    def outdated(self, *, step: int, limits: StalenessLimits, now_s: float) -> list[int]:
        """The pages (by seq) beyond the budget of the head at ``step``, which are not drawn from now on."""
        slots = np.array(self.pages.slots, np.int64)
        outdated = self.pages.outdated(
            slots, step=step, max_lag=limits.max_lag, max_age_s=limits.max_age_s, now_s=now_s
        )
        gone = slots[outdated].tolist()
        for slot in gone:
            if not self.offers.is_hidden(slot):
                self.offers.hide_page(slot)
        return [self.pages.page(slot).header.seq for slot in gone]

    def read(self, drawn: Drawn) -> tuple[dict[str, Array], list[FrameReferences]]:
        """The tensors of drawn units (see ``windows``)."""
        first = self._reader.rows_of(drawn.leaves)
        if self._settings.period:
            return self._reader.sequences(first)
        return self._reader.transitions(first)

    def block(self, slot: int, *, image_index: int, block: int) -> memoryview:
        """One block of a page's image, compressed."""
        found = self.pages.page(slot).images[image_index]
        return self._blocks.read(found.file, int(found.stops[block]), int(found.stops[block + 1]))

    def num_frames(self, slot: int, *, image_index: int) -> int:
        """How many frames of an image a page has."""
        return self.pages.page(slot).images[image_index].num_frames

    # -- uses and priorities ---------------------------------------------------------------------------------------

    def leaves_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The leaves of units; negative for those that are evicted."""
        units = self._settings.units
        seqs, inverse = np.unique(ids // units, return_inverse=True)
        slots = np.array([self.pages.slot_of(seq) for seq in seqs.tolist()], np.int64)[inverse]
        return np.where(slots == NOWHERE, NOWHERE, slots * units + ids % units)

    def reserve(self, ids: NDArray[np.int64]) -> None:
        """A learner holds these units."""
        if self._layout is not None:  # else no page is left of those that the ledger knows
            self.offers.reserve(self._resident(ids))

    def unreserve(self, ids: NDArray[np.int64]) -> None:
        """A learner does not hold these units any more."""
        if self._layout is not None:  # else no page is left of those that the ledger knows
            self.offers.unreserve(self._resident(ids))

    def use(self, ids: NDArray[np.int64]) -> None:
        """A gradient step used these units."""
        if self._layout is not None:  # else no page is left of those that the ledger knows
            self.offers.use(self._resident(ids))

    def set_uses(self, uses_of_seq: Mapping[int, NDArray[np.uint32]]) -> None:
        """Every resident unit's uses, counted from the ledger; pages that are not named have none."""
        none = np.zeros(self._settings.units, np.uint32)
        for slot in self.pages.slots:
            self.offers.set_uses(slot, uses_of_seq.get(self.pages.page(slot).header.seq, none))

    def set_priorities(self, ids: NDArray[np.int64], priorities: NDArray[np.float32]) -> PriorityReport:
        """Set the priorities that a learner computed."""
        usable = usable_priorities(priorities)
        num_refused = int(len(ids) - np.count_nonzero(usable))
        leaves = self.leaves_of(ids[usable])
        resident = leaves != NOWHERE
        num_set = int(np.count_nonzero(resident))
        if num_set:
            self.offers.set_priorities(leaves[resident], priorities[usable][resident])
        return PriorityReport(num_set, num_refused, len(leaves) - num_set)

    def _resident(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        leaves = self.leaves_of(ids)
        return leaves[leaves != NOWHERE]

    def _ids(self, leaves: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
        unique, inverse = np.unique(slots, return_inverse=True)
        seqs = np.array([self.pages.page(slot).header.seq for slot in unique.tolist()], np.int64)[inverse]
        return seqs * self._settings.units + leaves % self._settings.units

    def follow(self, lineage: LineageName, tree: LineageTree) -> None:
        """The head moves along another lineage (see ``Pages.follow``); what the old one hid may be open again."""
        self.pages.follow(lineage, tree)
        for slot in self.pages.slots:
            self.offers.show_page(slot)
