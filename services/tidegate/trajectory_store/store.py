"""The store as one thing: the ledger, the payloads beside it, the uploads, and whom to wake when they change.

Synchronous throughout; one thread owns it. Servicer and loops wrap it and add the waiting.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tidegate.core.audit import LedgerTotals
from tidegate.core.batching import Candidate, Drop, drop_group, judge_groups
from tidegate.core.errors import CorruptionError, RecordError
from tidegate.core.ids import PolicyVersion, RunId
from tidegate.core.staleness import Lineage, LineageTree, StalenessLimits
from tidegate.trajectory_store.admission_check import AdmissionCheck
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.folder_lock import lock_folder
from tidegate.trajectory_store.hash_chain import frame_digest
from tidegate.trajectory_store.intake import ArrivedMessage, Ingested, Parcel, Refusal, open_messages
from tidegate.trajectory_store.kept_updates import MadeUpdate, made_update
from tidegate.trajectory_store.lease_deadlines import LeaseDeadlines
from tidegate.trajectory_store.ledger import Accepted, Ledger
from tidegate.trajectory_store.reading import status_of
from tidegate.trajectory_store.replay.plan import ReplayPlan
from tidegate.trajectory_store.replay.replay import REPLAY_FOLDER, Replay, check_kind
from tidegate.trajectory_store.rows import Arrival
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.trajectory_store.segments import SEGMENTS_FOLDER, Segments
from tidegate.trajectory_store.state import Batch, BatchLease, Location, batch_of
from tidegate.trajectory_store.uploads import UploadArea
from tidegate.trajectory_store.wake import Wake
from tidegate.wire.clients.trajectory_store import (
    ConsumedBatch,
    Consumption,
    Dropped,
    Outcome,
    TrajectoryStatus,
)

# Transactions of folding in one turn of housekeeping: more rows than arrive in a period.
FOLDS_MAX = 4
# Drops kept for their traces; older ones are evicted.
RECENT_DROPS_MAX = 1024
SHORTENED_CHARACTERS = 300


class Store:
    """The truth about one run's trajectories, on disk."""

    def __init__(
        self,
        folder: Path,
        *,
        run_id: RunId,
        config: TrajectoryStoreConfig,
        now_s: float,
        replay: ReplayPlan | None = None,
        task_secrets: Callable[[], Sequence[bytes]] | None = None,
    ) -> None:
        """Open or create everything below ``folder`` and drop trajectories whose payload a power cut took.

        ``task_secrets``: what the task queue may have signed tasks with; None believes every message.

        Raises:
            StaleFolderError: another store has the folder open, it belongs to another run, or to one with other replay.
            CorruptionError: the ledger cannot be read.
        """
        self._run_id = run_id
        self._config = config
        self.arrived = Wake()
        self.outcome_added = Wake()
        # Of replay: what was drawn may let the next segments in.
        self.sampled = Wake()
        self.recent_drops: deque[Drop] = deque(maxlen=RECENT_DROPS_MAX)
        self._outcomes_read_to = 0
        self._deadlines = LeaseDeadlines(timeout_s=config.lease_timeout_s, period_s=config.expiry_period_s)
        self.ledger_path = folder / LEDGER_FILE
        with ExitStack() as opened:
            opened.callback(os.close, lock_folder(folder))
            self.ledger = Ledger.open(self.ledger_path, run_id=run_id, durability=config.durability)
            opened.callback(self.ledger.close)
            newest_step = self.ledger.newest_step
            self.admission = AdmissionCheck(task_secrets, run_id=run_id, newest_step=newest_step)
            self._segments = Segments(
                folder / SEGMENTS_FOLDER,
                segment_bytes=config.segment_bytes,
                cache_bytes=config.frame_cache_bytes,
                durability=config.durability,
                newest_known=self.ledger.newest_segment(),
            )
            opened.callback(self._segments.close)
            self.uploads = UploadArea(
                folder / "uploads",
                bytes_max=config.uploads_bytes_max,
                ttl_s=config.upload_ttl_s,
                durable=config.durability == "power_loss",
                now_s=now_s,
            )
            check_kind(self.ledger, replays=replay is not None)
            self.replay: Replay | None = None
            if replay is not None:
                self.replay = Replay(
                    folder / REPLAY_FOLDER, replay, self.ledger, dropped=self._dropped, now_s=now_s
                )
                opened.callback(self.replay.close)
            self._opened = opened.pop_all()
        if self.replay is None:
            self._drop_lost_payloads(now_s=now_s)

    def close(self) -> None:
        """Close every file; what was committed stays."""
        self._opened.close()

    @property
    def lease_timeout_s(self) -> float:
        """A lease that is not renewed for so long ends."""
        return self._config.lease_timeout_s

    @property
    def tree(self) -> LineageTree:
        """The lineages opened so far."""
        return self.ledger.tree

    def room(self, most: int) -> int:
        """How many messages may be fetched now, at most ``most``; 0 until a gradient or a drop frees capacity."""
        if self.replay is not None:
            return self.replay.room(most)
        resident = len(self.ledger.pool) + self.ledger.tally.leased
        is_full = (
            resident >= self._config.max_resident_trajectories
            or self.ledger.frames.num_bytes >= self._config.max_resident_bytes
        )
        return 0 if is_full else most

    # -- arriving --------------------------------------------------------------------------------------------------

    def ingest(self, messages: Sequence[ArrivedMessage], *, now_s: float) -> Ingested:
        """Decode, store and record messages in one transaction; they may be acknowledged when this returns.

        Refused ones are not dropped yet (see ``refuse``): first they are kept in QUARANTINE.

        Raises:
            OSError: the disk is full or broken; nothing was recorded.
        """
        opened = open_messages(
            messages,
            run_id=self._run_id,
            tree=self.tree,
            uploads=self.uploads,
            admission=self.admission.of_now(),
            keeps_images=self.replay is not None,
        )
        if self.replay is not None:
            opened = [self.replay.open(item) if isinstance(item, Parcel) else item for item in opened]
        parcels = [item for item in opened if isinstance(item, Parcel)]
        refused = [item for item in opened if isinstance(item, Refusal)]
        # A reference that came again finds its upload gone, because the first one was accepted.
        repeated = self._repeated(refused)
        accepted = self._accept(
            parcels,
            duplicates=sum(len(refusal.message.trajectory_ids()) for refusal in repeated),
            now_s=now_s,
        )
        for parcel in parcels:
            if parcel.upload is not None:
                self.uploads.remove(parcel.upload)
        return Ingested(
            accepted=accepted.arrivals,
            refused=[refusal for refusal in refused if refusal not in repeated],
            num_duplicates=accepted.num_duplicates,
        )

    def _repeated(self, refused: Sequence[Refusal]) -> list[Refusal]:
        """References to uploads all of whose trajectories have a row."""
        references = [refusal for refusal in refused if refusal.message.is_reference]
        if not references:
            return []
        known = self.ledger.known(
            {name for refusal in references for name in refusal.message.trajectory_ids()}
        )
        return [
            refusal
            for refusal in references
            if (names := refusal.message.trajectory_ids()) and known.issuperset(names)
        ]

    def _accept(self, parcels: Sequence[Parcel], *, duplicates: int, now_s: float) -> Accepted:
        if not parcels and not duplicates:
            return Accepted(arrivals=(), num_duplicates=0)
        accept = self._store_frames if self.replay is None else self.replay.accept
        accepted = accept(parcels, duplicates=duplicates, now_s=now_s)
        if accepted.arrivals:
            self.arrived.notify()
            self.outcome_added.notify()
        return accepted

    def _store_frames(self, parcels: Sequence[Parcel], *, duplicates: int, now_s: float) -> Accepted:
        # What turns out to be a redelivery leaves bytes that nothing refers to, and that go with their segment.
        locations = self._segments.append([parcel.frame for parcel in parcels])
        arrivals = [
            Arrival(
                location=location,
                head=parcel.head,
                digest=frame_digest(parcel.frame, parcel.head),
                columns=parcel.columns,
                frame_indexes=range(len(parcel.columns)),
                received_at_s=parcel.message.received_at_s,
            )
            for location, parcel in zip(locations, parcels, strict=True)
        ]
        return self.ledger.accept(arrivals, duplicates=duplicates, now_s=now_s)

    def refuse(self, refusal: Refusal, *, now_s: float) -> int:
        """Drop the trajectories of a refused message, once QUARANTINE has it; returns how many were new."""
        dropped = [
            Dropped(trajectory_id=name, reason="invalid", detail=refusal.reason) for name in refusal.dropped
        ]
        num_dropped = self.ledger.drop_unarrived(dropped, now_s=now_s, quarantined=1)
        self.outcome_added.notify()
        return num_dropped

    def drop_unarrived(self, dropped: Sequence[Dropped], *, now_s: float) -> int:
        """Drop trajectories that no actor will finish; returns how many had no outcome.

        Raises:
            RecordError: a reason is unknown.
        """
        num_dropped = self.ledger.drop_unarrived(dropped, now_s=now_s)
        self.outcome_added.notify()
        return num_dropped

    # -- batches ---------------------------------------------------------------------------------------------------

    def lease(
        self,
        version: PolicyVersion,
        *,
        batch_size: int,
        limits: StalenessLimits,
        learner_id: str,
        now_s: float,
    ) -> Batch | None:
        """The next full batch for an update of ``version``, None while there is not enough.

        What left the budget is dropped on the way. A learner that asks again at the version of a batch it holds gets
        that batch again: its answer was lost, and a version takes one batch.

        Raises:
            UnknownVersionError: no learner opened the version's lineage.
            ConflictError: a newer lineage took over.
            RecordError: this store replays, and gives out samples.
        """
        if self.replay is not None:
            raise RecordError(
                "A store that replays leases no whole trajectories",
                fix="sample a batch: learner.algorithm must replay",
            )
        self.ledger.check_open(version)
        self.ledger.note_head(version)
        if (held := self.ledger.lease_of(learner_id, version)) is not None:
            again = self._lease_again(held, limits=limits, now_s=now_s)
            if again is not None:
                return again
        while True:
            choice = self.ledger.pool.choose(
                batch_size=batch_size, head=version, tree=self.tree, limits=limits, now_s=now_s
            )
            self._drop(choice.dropped, now_s=now_s)
            if not choice.batch:
                return None
            frames, lost = self._read(choice.batch)
            if not lost:
                lease = self.ledger.lease(
                    choice.batch, version=version, learner_id=learner_id, limits=limits, now_s=now_s
                )
                return batch_of(lease, frames, now_s=now_s)
            self._drop_lost(lost, now_s=now_s)

    def _lease_again(self, held: BatchLease, *, limits: StalenessLimits, now_s: float) -> Batch | None:
        """The batch a learner holds already; None if it must be released, because a part is unusable."""
        frames, lost = self._read(held.candidates)
        judged = judge_groups(
            ((candidate,) for candidate in held.candidates),
            head=held.version,
            tree=self.tree,
            limits=limits,
            now_s=now_s,
        )
        if not lost and not judged.dropped:
            return batch_of(held, frames, now_s=now_s)
        dropped = [Dropped(candidate.trajectory_id, "failed", detail) for candidate, detail in lost]
        dropped += [
            Dropped(drop.candidate.trajectory_id, drop.reason, drop.detail) for drop in judged.dropped
        ]
        self.release(held.batch_id, dropped=dropped, now_s=now_s)
        return None

    def commit(
        self, batch_id: str, *, version: PolicyVersion, consumptions: Sequence[Consumption], now_s: float
    ) -> None:
        """A batch was trained at ``version`` (see ``Ledger.commit``)."""
        self._forget(self.ledger.commit(batch_id, version=version, consumptions=consumptions, now_s=now_s))
        self.outcome_added.notify()

    def read_update(self, version: PolicyVersion) -> MadeUpdate | None:
        """The batch of an update (see ``made_update``); None with replay, which keeps no batches."""
        return (
            None
            if self.replay is not None
            else made_update(self.ledger.connection, self._segments, version, tree=self.tree)
        )

    def release(
        self, batch_id: str, *, dropped: Sequence[Dropped], now_s: float, expired: bool = False
    ) -> None:
        """Release a batch (see ``Ledger.release`` and ``Replay.release``)."""
        if self.replay is not None:
            self.replay.release(batch_id, dropped=dropped, now_s=now_s, expired=expired)
        else:
            self._forget(self.ledger.release(batch_id, dropped=dropped, now_s=now_s, expired=expired))
        self.outcome_added.notify()
        self.arrived.notify()

    def renew(self, batch_ids: Sequence[str], *, learner_id: str) -> list[str]:
        """Keep leases from expiring; returns those that are not this learner's any more (see ``Ledger.holds``)."""
        kept = [batch_id for batch_id in batch_ids if self.ledger.holds(batch_id, learner_id=learner_id)]
        self._deadlines.renew(batch_id for batch_id in kept if batch_id in self.ledger.leases)
        return [batch_id for batch_id in batch_ids if batch_id not in kept]

    def expire_leases(self, *, monotonic_s: float, now_s: float, is_away: bool = False) -> list[BatchLease]:
        """End the leases that their learners did not renew in time; returns them. ``is_away``: they cannot renew."""
        leases = self.ledger.leases
        self._deadlines.renew(leases if is_away else ())
        overdue = [leases[name] for name in self._deadlines.overdue(leases.keys(), now_s=monotonic_s)]
        for lease in overdue:
            self.release(lease.batch_id, dropped=(), now_s=now_s, expired=True)
        return overdue

    def expire(self, limits: StalenessLimits, *, now_s: float) -> int:
        """Drop what left the budget of the newest known version; returns how many."""
        if self.replay is not None:
            return self.replay.expire(limits, now_s=now_s)
        if self.ledger.head is None:
            return 0
        overdue = self.ledger.pool.overdue(head=self.ledger.head, tree=self.tree, limits=limits, now_s=now_s)
        self._drop(overdue, now_s=now_s)
        return len(overdue)

    def _drop(self, drops: Sequence[Drop], *, now_s: float) -> None:
        if not drops:
            return
        self._forget(self.ledger.drop(drops, now_s=now_s))
        self._dropped(drops)

    def _dropped(self, drops: Sequence[Drop]) -> None:
        """Available trajectories ended: trace them, and tell who follows."""
        self.recent_drops.extend(drops)
        self.outcome_added.notify()

    def _read(self, candidates: Sequence[Candidate]) -> tuple[list[bytes], list[tuple[Candidate, str]]]:
        """The frames of a batch, each once and in order; and the candidates whose payload the disk lost."""
        frames: dict[int, bytes] = {}
        problems: dict[int, str] = {}
        for candidate in candidates:
            if candidate.frame_id in frames or candidate.frame_id in problems:
                continue
            try:
                frames[candidate.frame_id] = self._segments.read(
                    self.ledger.frames.location(candidate.frame_id)
                )
            except CorruptionError as error:
                problems[candidate.frame_id] = str(error)[:SHORTENED_CHARACTERS]
        lost = [
            (candidate, problems[candidate.frame_id])
            for candidate in candidates
            if candidate.frame_id in problems
        ]
        return list(frames.values()), lost

    def _drop_lost(self, lost: Sequence[tuple[Candidate, str]], *, now_s: float) -> None:
        drops: dict[int, Drop] = {}
        for candidate, detail in lost:
            members = self.ledger.pool.siblings(candidate)
            for drop in drop_group(members, lost=candidate, reason="failed", detail=detail):
                drops.setdefault(drop.candidate.seq, drop)
        self._drop(list(drops.values()), now_s=now_s)

    def _drop_lost_payloads(self, *, now_s: float) -> None:
        detail = "its payload is not on disk: a backup has none, a power cut takes it without `durability: power_loss`"
        self._drop_lost(
            [
                (candidate, detail)
                for candidate in self.ledger.pool
                if not self._segments.holds(self.ledger.frames.location(candidate.frame_id))
            ],
            now_s=now_s,
        )

    def _forget(self, finished: Sequence[Location]) -> None:
        for location in finished:
            self._segments.forget(location)

    # -- lineages --------------------------------------------------------------------------------------------------

    def open_lineage(
        self,
        lineage: Lineage,
        *,
        learner_id: str,
        consumed: Sequence[ConsumedBatch],
        ancestors: Sequence[Lineage] = (),
        now_s: float,
    ) -> int:
        """A learner started or was restored (see ``Ledger.open_lineage``); returns how many rows were revived."""
        revived = self.ledger.open_lineage(
            lineage,
            learner_id=learner_id,
            consumed=consumed,
            ancestors=ancestors,
            segments=(
                self._segments.sizes.keys() if self.replay is None else self.replay.buffer.pages.seqs()
            ),
            now_s=now_s,
        )
        if self.replay is not None:
            self.replay.lineage_opened(now_s=now_s)
        self.arrived.notify()
        self.outcome_added.notify()
        return revived

    def mark_checkpointed(self, version: PolicyVersion) -> None:
        """Updates up to ``version`` are safe in a checkpoint: payloads that only they needed go.

        Raises:
            UnknownVersionError: no learner opened the version's lineage.
        """
        self.ledger.mark_checkpointed(version)
        if self.replay is not None:
            self.replay.checkpointed(version)
            return
        needed = {*self.ledger.segments_needed(), self._segments.active}
        room = self._config.replayable_bytes_max
        for segment, size in reversed(self._segments.sizes.items()):
            if segment not in needed:
                room -= size
                if room < 0:
                    self._segments.delete(segment)

    # -- housekeeping ----------------------------------------------------------------------------------------------

    def tidy(self, *, now_s: float) -> None:
        """Hold the bounds that time alone would overrun: the outcome log, old uploads, payloads kept for a restore."""
        self.ledger.prune_outcomes(outcomes_max=self._config.outcomes_max)
        self.uploads.expire(now_s=now_s, is_reading=self.room(1) > 0)
        self.ledger.count_ended()
        self._fold()
        sizes = self._segments.sizes
        excess = sum(sizes.values()) - self._config.retain_bytes_max
        if excess <= 0:
            return
        live = {*self.ledger.frames.segments(), self._segments.active}
        for segment, size in sizes.items():
            if excess <= 0:
                break
            if segment not in live:
                self._segments.delete(segment)
                excess -= size

    def _fold(self) -> None:
        """Fold rows beyond the bound whose payloads are deleted and whose outcomes were read."""
        for _ in range(FOLDS_MAX if self.replay is None else 0):
            if not self.ledger.fold(
                rows_kept_max=self._config.rows_kept_max,
                oldest_segment=min(self._segments.sizes, default=self._segments.active),
                read_to=self._outcomes_read_to,
            ):
                break

    # -- asking ----------------------------------------------------------------------------------------------------

    def outcomes(self, cursor: int, *, limit: int) -> tuple[list[Outcome], int]:
        """Outcomes after ``cursor`` and the next cursor (see ``outcome_log``)."""
        outcomes, next_cursor = self.ledger.outcomes(cursor, limit=limit)
        # The task queue asks with the cursor up to which it keeps what it was given, or is given every row again.
        self._outcomes_read_to = cursor if 0 <= cursor <= next_cursor else 0
        return outcomes, next_cursor

    def totals(self) -> LedgerTotals:
        """Counts by state: the right-hand side of the audit."""
        return self.ledger.totals()

    def trajectory(self, trajectory_id: str) -> TrajectoryStatus:
        """One row with its provenance.

        Raises:
            NotFoundError: the ledger has no such trajectory.
        """
        return status_of(self.ledger.connection, trajectory_id)
