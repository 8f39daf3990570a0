"""The store's replay: buffer, ledger and pace together. Synchronous; the thread that owns the ledger owns it.

A segment arrives: room is made (what is evicted unused is dropped in the ledger first), its page is written, the ledger
names it, and only then is its message acknowledged. A batch is sampled: the ledger holds its units, then it is sent. It
is committed: the ledger has the uses, then the buffer counts them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.batching import Drop
from tidegate.core.errors import RecordError, StaleFolderError, TidegateError
from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import DropReason, Trajectory
from tidegate.core.staleness import StalenessLimits, clock_ahead_s
from tidegate.trajectory_store import batches, counts
from tidegate.trajectory_store.hash_chain import frame_digest
from tidegate.trajectory_store.intake import Parcel, Refusal
from tidegate.trajectory_store.ledger import Accepted, Ledger
from tidegate.trajectory_store.replay import accounting
from tidegate.trajectory_store.replay.buffer import Drawn, PriorityReport, ReplayBuffer, Resident, Segment
from tidegate.trajectory_store.replay.limiter import Limiter
from tidegate.trajectory_store.replay.plan import ReplayPlan
from tidegate.trajectory_store.replay.sampled_batches import EVICTED, SampledBatches, SampledCommit
from tidegate.trajectory_store.replay.sending import sample_frame
from tidegate.trajectory_store.replay.uses import decode_units, num_units
from tidegate.trajectory_store.rows import Arrival, spans_from
from tidegate.trajectory_store.schema import transaction
from tidegate.trajectory_store.state import BatchLease, Location
from tidegate.wire.clients.trajectory_store import Consumption, Dropped
from tidegate.wire.columns import EpisodeRow

REPLAY_FOLDER = "replay"
# Episodes reported with the next batch; more end between two batches only while the learner is away.
EPISODES_MAX = 1024
NOT_ON_DISK = "its page is not on disk: a crash cut its write, or a power cut took it"


class SampledBatch(msgspec.Struct, frozen=True, eq=False):
    """A batch to send."""

    batch_id: str
    frame: bytes


class Committed(msgspec.Struct, frozen=True):
    """What a commit changed: trajectories it used first, and what became of its priorities."""

    num_first_uses: int
    priorities: PriorityReport


class Replay:
    """Owned by the store, which passes everything on that replay changes."""

    def __init__(
        self,
        folder: Path,
        plan: ReplayPlan,
        ledger: Ledger,
        *,
        dropped: Callable[[Sequence[Drop]], None],
        now_s: float,
    ) -> None:
        """Open the buffer and find what the ledger knows of it; ``dropped`` is told what ended on the way.

        Raises:
            StaleFolderError: the run was started with other segments or another capacity.
            CorruptionError: the buffer's description cannot be read.
        """
        self._plan = plan
        self._ledger = ledger
        self._units = plan.buffer.units
        with transaction(ledger.connection) as db:
            accounting.note_settings(db, units=self._units, uses_max=plan.buffer.uses_max)
        self.buffer = ReplayBuffer(folder, plan.buffer)
        self.limiter = Limiter(plan.pace, insert_units=plan.insert_units)
        self._batches = SampledBatches(ledger, units=self._units)
        self._episodes: deque[EpisodeRow] = deque(maxlen=EPISODES_MAX)
        self._dropped = dropped
        folder.mkdir(parents=True, exist_ok=True)
        self._recover(now_s=now_s)

    @property
    def units(self) -> int:
        """Steps of one segment, over all of its environments."""
        return self._units

    @property
    def num_slots(self) -> int:
        """Segments that fit."""
        return self._plan.buffer.num_slots

    def close(self) -> None:
        """Close every file."""
        self.buffer.close()

    def _recover(self, *, now_s: float) -> None:
        num_torn = self.buffer.recover(self._residents)
        if num_torn:
            with transaction(self._ledger.connection) as db:
                counts.add_to_counter(db, "replay_torn", num_torn)
        self._inserted_rows = self.buffer.newest_arrival
        (self._inserted_steps,) = self._ledger.connection.execute(
            "SELECT coalesce(sum(num_steps), 0) FROM trajectories"
        ).fetchone()
        self.limiter.inserted = counts.read_counter(self._ledger.connection, "replay_inserted")
        self._drop_absent("failed", NOT_ON_DISK, now_s=now_s)
        self._follow_ledger()

    def _residents(self, seqs: Sequence[int]) -> dict[int, Resident]:
        """What the ledger knows of trajectories that were not dropped."""
        return {
            seq: Resident(seq, TrajectoryId(name), spans_from(spans), started_at_s)
            for seq in seqs
            for name, spans, started_at_s in self._ledger.connection.execute(
                "SELECT trajectory_id, spans, started_at_s FROM trajectories"
                " WHERE seq = ? AND state != 'dropped' AND frame_id IS NOT NULL",
                (seq,),
            )
        }

    def _follow_ledger(self) -> None:
        """Uses, held units and lags as the ledger has them: after a start and after every new lineage."""
        ledger = self._ledger
        if ledger.head is not None:
            self.buffer.follow(ledger.head.lineage, ledger.tree)
        survival = accounting.Survival(ledger.connection, ledger.tree)
        resident = self.buffer.pages.seqs()
        self.buffer.set_uses(
            accounting.surviving_uses(ledger.connection, survival, units=self._units, seqs=resident)
        )
        self.limiter.sampled = accounting.samples_of(ledger.connection, survival)
        for ids in self._batches.held():
            self.buffer.reserve(ids)
            self.limiter.sampled += len(ids)
        self._unused = self._batches.unused()

    # -- arriving --------------------------------------------------------------------------------------------------

    def room(self, most: int) -> int:
        """How many more trajectories may be fetched now, at most ``most``."""
        return self.limiter.trajectories_allowed(
            drawable=self.buffer.drawable, most=min(most, self._plan.buffer.num_slots)
        )

    def open(self, parcel: Parcel) -> Parcel | Refusal:
        """The parcel if its segment can be inserted, else why not."""
        try:
            segment = _only_trajectory(parcel)
            self.buffer.check(segment.tensors, name=f"Trajectory {segment.trajectory_id}")
        except RecordError as error:
            return Refusal(message=parcel.message, reason=str(error), dropped=parcel.message.trajectory_ids())
        return parcel

    def accept(self, parcels: Sequence[Parcel], *, duplicates: int, now_s: float) -> Accepted:
        """Insert segments and record them; those that came again are counted.

        Raises:
            OSError: the disk is full or broken; what was not recorded is not in the buffer either.
            UnavailableError: the ledger cannot be written; the same.
        """
        fresh, repeated = self._fresh(parcels)
        arrivals: list[Arrival] = []
        at_once = self._plan.buffer.num_slots
        for start in range(0, max(1, len(fresh)), at_once):
            portion = fresh[start : start + at_once]
            again = (duplicates + repeated) if start == 0 else 0
            arrivals += self._insert(portion, duplicates=again, now_s=now_s)
        return Accepted(arrivals=arrivals, num_duplicates=duplicates + repeated)

    def _fresh(self, parcels: Sequence[Parcel]) -> tuple[list[Parcel], int]:
        """Each trajectory once, and none that the ledger knows."""
        known = self._ledger.known([name for parcel in parcels for name in parcel.columns.trajectory_id])
        fresh: list[Parcel] = []
        for parcel in parcels:
            (name,) = parcel.columns.trajectory_id
            if name not in known:
                known.add(name)
                fresh.append(parcel)
        return fresh, len(parcels) - len(fresh)

    def _insert(self, parcels: Sequence[Parcel], *, duplicates: int, now_s: float) -> Sequence[Arrival]:
        self._evict(self.buffer.must_evict(len(parcels)), now_s=now_s)
        ledger, first_seq = self._ledger, self._ledger.next_seq
        arrivals: list[Arrival] = []
        episodes: list[EpisodeRow] = []
        num_rows = num_steps = num_complete = 0
        try:
            for seq, parcel in enumerate(parcels, start=first_seq):
                record = _only_trajectory(parcel)
                newest_s = max(record.started_at_s, record.finished_at_s)
                ahead_s = clock_ahead_s(newest_s, received_at_s=parcel.message.received_at_s)
                started_at_s = record.started_at_s - ahead_s
                resident = Resident(seq, record.trajectory_id, record.spans, started_at_s)
                segment = Segment(resident, record.stream_id, record.stream_position, record.tensors)
                num_complete += self.buffer.insert(segment, arrival=self._inserted_rows + num_rows)
                num_rows += self._units
                num_steps += record.num_steps
                episodes += parcel.columns.episodes[0]
                arrivals.append(
                    Arrival(
                        location=Location(segment=seq, offset=0, size=len(parcel.frame)),
                        head=parcel.head,
                        digest=frame_digest(parcel.frame, parcel.head),
                        columns=parcel.columns,
                        frame_indexes=range(1),
                        received_at_s=parcel.message.received_at_s,
                    )
                )
            accepted = ledger.accept(
                arrivals, duplicates=duplicates, now_s=now_s, inserted_units=num_complete
            )
        except (OSError, TidegateError):
            self.buffer.evict(range(first_seq, first_seq + len(parcels)))
            raise
        self._inserted_rows += num_rows
        self._inserted_steps += num_steps
        self.limiter.inserted += num_complete
        self._unused.update(range(first_seq, first_seq + len(parcels)))
        self._episodes.extend(episodes)
        return accepted.arrivals

    # -- evicting --------------------------------------------------------------------------------------------------

    def _evict(self, seqs: Sequence[int], *, now_s: float) -> None:
        """Free pages; what of them was never used is dropped as unsampled, if no learner holds it."""
        if not seqs:
            return
        drops = [Drop(item, "unsampled", EVICTED) for item in self._ledger.pool.waiting(seqs)]
        self._drop(drops, now_s=now_s)
        self.buffer.evict(seqs)

    def expire(self, limits: StalenessLimits, *, now_s: float) -> int:
        """Drop and evict what left the budget of the newest known version; returns how many trajectories ended."""
        ledger = self._ledger
        if ledger.head is None:
            return 0
        overdue = ledger.pool.overdue(head=ledger.head, tree=ledger.tree, limits=limits, now_s=now_s)
        self._drop(overdue, now_s=now_s)
        outdated = self.buffer.outdated(step=ledger.head.step, limits=limits, now_s=now_s)
        self._evict(outdated, now_s=now_s)
        return len(overdue)

    def _drop(self, drops: Sequence[Drop], *, now_s: float) -> None:
        if not drops:
            return
        self._ledger.drop(drops, now_s=now_s)
        self._ended(drops)

    def _ended(self, drops: Sequence[Drop]) -> None:
        self._unused.difference_update(drop.candidate.seq for drop in drops)
        self._dropped(drops)

    def _drop_absent(self, reason: DropReason, detail: str, *, now_s: float) -> None:
        """Available trajectories without a page can never be sampled."""
        resident = self.buffer.pages.seqs()
        absent = [candidate for candidate in self._ledger.pool if candidate.seq not in resident]
        if absent:
            self._ledger.drop([Drop(candidate, reason, detail) for candidate in absent], now_s=now_s)

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(
        self,
        version: PolicyVersion,
        *,
        batch_size: int,
        limits: StalenessLimits,
        learner_id: str,
        now_s: float,
    ) -> SampledBatch | None:
        """The next batch for an update of ``version``; None while the pace or the staleness budget leaves too little.

        A learner that asks again at the version of a batch it holds gets that batch again: its answer was lost.

        Raises:
            UnknownVersionError: no learner opened the version's lineage.
            ConflictError: a newer lineage took over.
        """
        ledger = self._ledger
        ledger.check_open(version)
        ledger.note_head(version)
        held = ledger.lease_of(learner_id, version)
        if held is not None:
            again = self._sample_again(held, limits=limits, now_s=now_s)
            if again is not None:
                return again
            self.release(held.batch_id, dropped=(), now_s=now_s)
        if not self.limiter.may_sample(count=batch_size, drawable=self.buffer.drawable):
            return None
        drawn = self.buffer.draw(
            batch_size,
            step=version.step,
            limits=limits,
            # From the batch's number, so that a run repeats itself and a restart draws on.
            rng=np.random.default_rng([self._plan.seed, ledger.next_batch]),
            now_s=now_s,
        )
        if drawn is None:
            return None
        lease = self._batches.lease(
            drawn.ids, version=version, learner_id=learner_id, now_s=now_s, limits=limits
        )
        self.buffer.reserve(drawn.ids)
        self.limiter.sampled += len(drawn.ids)
        return self._batch(lease, drawn, now_s=now_s)

    def _sample_again(
        self, held: BatchLease, *, limits: StalenessLimits, now_s: float
    ) -> SampledBatch | None:
        """The batch a learner holds already; None if a part of it was evicted or left the budget."""
        drawn = self.buffer.drawn_again(
            decode_units(held.units), step=held.version.step, limits=limits, now_s=now_s
        )
        return None if drawn is None else self._batch(held, drawn, now_s=now_s)

    def _batch(self, lease: BatchLease, drawn: Drawn, *, now_s: float) -> SampledBatch:
        frame = sample_frame(
            self.buffer,
            drawn,
            batch_id=lease.batch_id,
            unused=self._unused,
            inserted_steps=self._inserted_steps,
            episodes=tuple(self._episodes),
            is_sequence=self._plan.buffer.period > 0,
            now_s=now_s,
        )
        self._episodes.clear()
        return SampledBatch(batch_id=lease.batch_id, frame=frame)

    def commit(
        self,
        batch_id: str,
        *,
        version: PolicyVersion,
        sampled: SampledCommit,
        priorities: NDArray[np.float32] | None,
        consumptions: Sequence[Consumption],
        now_s: float,
    ) -> Committed:
        """A batch was trained at ``version`` (see ``SampledBatches.commit``). Committing it again changes nothing.

        Raises:
            ConflictError: the lease ended, or the batch was committed at another version.
            RecordError: the commit does not fit its batch.
        """
        ledger = self._ledger
        if batch_id not in ledger.leases:
            batches.check_committed(ledger.connection, batch_id, version)
            return Committed(0, PriorityReport())
        ids = sampled.units
        if priorities is not None and len(priorities) != len(ids):
            raise RecordError(f"A commit of {len(ids)} units has {len(priorities)} priorities")
        leaves = self.buffer.leaves_of(ids)
        slots = leaves[leaves >= 0] // self._units
        own_lags = self.buffer.pages.lags(slots, step=version.step)
        report = PriorityReport() if priorities is None else self.buffer.set_priorities(ids, priorities)
        first = self._batches.commit(
            batch_id,
            version=version,
            commit=sampled,
            consumptions=consumptions,
            own_max_lag=int(own_lags.max(initial=0)),
            num_refused=report.num_refused,
            num_ignored=report.num_ignored,
            now_s=now_s,
        )
        self.buffer.unreserve(ids)
        self.buffer.use(ids)
        self._unused.difference_update(candidate.seq for candidate in first)
        return Committed(len(first), report)

    def release(
        self, batch_id: str, *, dropped: Sequence[Dropped], now_s: float, expired: bool = False
    ) -> None:
        """Give a batch back (see ``SampledBatches.release``); the pages of what is ``dropped`` are evicted.

        Raises:
            NotFoundError: there was no such batch.
            ConflictError: the batch was committed.
        """
        ledger = self._ledger
        lease = ledger.leases.get(batch_id)
        if lease is None:
            batches.check_released(ledger.connection, batch_id)
            return
        ids = decode_units(lease.units)
        drops = self._batches.release(
            batch_id, dropped=dropped, resident=self.buffer.pages.seqs(), now_s=now_s, expired=expired
        )
        if drops:
            self._ended(drops)
        self.buffer.unreserve(ids)
        self.limiter.sampled -= num_units(lease.units)
        names = {item.trajectory_id for item in dropped}
        pages = self.buffer.pages
        self._evict(
            [
                pages.page(slot).header.seq
                for slot in pages.slots
                if names and pages.page(slot).trajectory_id in names
            ],
            now_s=now_s,
        )

    # -- lineages --------------------------------------------------------------------------------------------------

    def lineage_opened(self, *, now_s: float) -> None:
        """The ledger opened a lineage: dead updates do not count any more, and what they alone had used is back."""
        self._drop_absent("unsampled", EVICTED, now_s=now_s)
        self._follow_ledger()

    def checkpointed(self, version: PolicyVersion) -> None:
        """Updates up to ``version`` are safe: fold their units into counts."""
        ledger = self._ledger
        with transaction(ledger.connection) as db:
            accounting.fold(
                db, ledger.tree, safe=version, resident=self.buffer.pages.seqs(), units=self._units
            )
        if self._plan.buffer.flush:
            self.buffer.flush()


def check_kind(ledger: Ledger, *, replays: bool) -> None:
    """Check that a folder's ledger is of a run with, or without, replay.

    Raises:
        StaleFolderError: the run was started otherwise.
    """
    was_replaying = accounting.units_of_ledger(ledger.connection) is not None
    is_empty = ledger.next_seq == 1
    if was_replaying != replays and not (is_empty and replays):
        raise StaleFolderError(
            f"This run was started {'with' if was_replaying else 'without'} trajectory_store.replay",
            why="its trajectories are kept in another form",
            fix="restore trajectory_store.replay.unit, or start in a new run folder",
        )


def _only_trajectory(parcel: Parcel) -> Trajectory:
    """The segment of a message.

    Raises:
        RecordError: it holds several trajectories.
    """
    if len(parcel.columns) != 1:
        raise RecordError(f"A message of {len(parcel.columns)} trajectories holds no segment")
    return parcel.opened.trajectories()[0]
