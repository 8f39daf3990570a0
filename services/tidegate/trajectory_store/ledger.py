"""The ledger: one row a trajectory, changed by transactions; derived state is kept in memory.

A row is available, then leased to a batch, then trained at a version or dropped with a reason; a restore moves rows
back (``restore``). Every method is one transaction: the file changes wholly or not at all, and memory follows only a
commit. One thread owns it.
"""

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tidegate.core.audit import LedgerTotals
from tidegate.core.batching import Candidate, Drop, drop_group
from tidegate.core.errors import ConflictError, RecordError, UnknownVersionError
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.replay import produced_by, surviving_steps
from tidegate.core.staleness import Lineage, LineageTree, StalenessLimits, lag_of
from tidegate.trajectory_store import batches, counted_rows, counts, folding, restore
from tidegate.trajectory_store.batches import check_reasons
from tidegate.trajectory_store.folded_ids import FoldedIds, folded_among, read_folded
from tidegate.trajectory_store.hash_chain import ArrivedNote, DroppedNote, UnarrivedNote, note
from tidegate.trajectory_store.memory import LedgerMemory, load_memory
from tidegate.trajectory_store.outcome_log import append_outcomes, prune_outcomes, read_outcomes
from tidegate.trajectory_store.rows import (
    INSERT_FRAME,
    INSERT_ROW,
    Arrival,
    ArrivedColumns,
    frame_row,
    insert_arrived,
    never_arrived,
    only_new,
)
from tidegate.trajectory_store.schema import Durability, durable_transaction, open_for_writing, transaction
from tidegate.trajectory_store.state import BatchLease, LiveFrames, Location, Pool, Tally
from tidegate.wire.clients.trajectory_store import ConsumedBatch, Consumption, Dropped, Outcome


class Accepted(msgspec.Struct, frozen=True, eq=False):
    """What became of frames: those with something new, reduced to it, and how many trajectories came again."""

    arrivals: Sequence[Arrival]
    num_duplicates: int


class Ledger:
    """The truth about every trajectory of one run."""

    def __init__(self, db: sqlite3.Connection) -> None:
        """Use ``open``."""
        self._db = db
        self._take(load_memory(db))

    @classmethod
    def open(cls, path: Path, *, run_id: str, durability: Durability = "process") -> "Ledger":
        """Open or create the ledger of one run and rebuild memory from it.

        Raises:
            StaleFolderError: the file belongs to another run or another version of the schema.
            CorruptionError: the file cannot be read.
            UnavailableError: the disk does not answer, or another process holds the file; later it may open.
        """
        with open_for_writing(path, run_id=run_id, durability=durability) as db:
            return cls(db)

    def close(self) -> None:
        """Close the file; what was committed stays."""
        self._db.close()

    def _take(self, memory: LedgerMemory) -> None:
        self.tree: LineageTree = memory.tree
        self.head: PolicyVersion | None = memory.head
        self.tally: Tally = memory.tally
        self.pool: Pool = memory.pool
        self.leases: dict[str, BatchLease] = memory.leases
        self.frames: LiveFrames = memory.frames
        self._next_seq = memory.next_seq
        self._next_frame = memory.next_frame
        self._next_batch = memory.next_batch
        self._folded: FoldedIds = memory.folded
        self.num_folded = memory.num_folded

    # -- arriving --------------------------------------------------------------------------------------------------

    def known(self, trajectory_ids: Collection[TrajectoryId]) -> set[TrajectoryId]:
        """Which of these have a row, in whatever state, or had one that was folded."""
        ids = msgspec.json.encode(list(trajectory_ids)).decode()
        rows = self._db.execute(
            "SELECT trajectory_id FROM trajectories WHERE trajectory_id IN (SELECT value FROM json_each(?))",
            (ids,),
        )
        found = {TrajectoryId(trajectory_id) for (trajectory_id,) in rows}
        return found | folded_among(self._db, self._folded, trajectory_ids) if self.num_folded else found

    def accept(
        self, arrivals: Sequence[Arrival], *, duplicates: int, now_s: float, inserted_units: int = 0
    ) -> Accepted:
        """Trajectories arrived and are available, but for those that have a row: they came again.

        ``duplicates`` is how many more came again, without a frame. ``inserted_units``: of replay, which passes none
        that have a row.
        """
        if not (self.num_folded and folded_among(self._db, self._folded, _names_of(arrivals))):
            # Redeliveries are few: known rows are queried only after the unique key found one.
            with suppress(sqlite3.IntegrityError):
                self._insert(arrivals, duplicates=duplicates, now_s=now_s, inserted_units=inserted_units)
                return Accepted(arrivals=arrivals, num_duplicates=duplicates)
        names = _names_of(arrivals)
        fresh = only_new(arrivals, known=self.known(set(names)))
        duplicates += len(names) - sum(len(item.columns) for item in fresh)
        self._insert(fresh, duplicates=duplicates, now_s=now_s)
        return Accepted(arrivals=fresh, num_duplicates=duplicates)

    def _insert(
        self, arrivals: Sequence[Arrival], *, duplicates: int, now_s: float, inserted_units: int = 0
    ) -> None:
        first_seq, first_frame = self._next_seq, self._next_frame
        columns = ArrivedColumns(arrivals, first_seq=first_seq, first_frame=first_frame)
        rows, candidates = columns.rows(now_s=now_s), columns.candidates()
        with transaction(self._db):
            self._db.executemany(
                INSERT_FRAME,
                [frame_row(each, frame_id=number) for number, each in enumerate(arrivals, start=first_frame)],
            )
            insert_arrived(self._db, rows)
            if arrivals:
                note(self._db, self._arrived_note(arrivals, now_s=now_s))
            append_outcomes(self._db, range(first_seq, first_seq + len(rows)), "accepted")
            counts.add_to_counter(self._db, "duplicates", duplicates)
            counts.add_to_counter(self._db, "replay_inserted", inserted_units)
        for number, arrival in enumerate(arrivals, start=first_frame):
            self.frames.add(number, arrival.location, num_live=len(arrival.columns))
        self._next_seq += len(rows)
        self._next_frame += len(arrivals)
        self.pool.add(candidates)
        self.tally.accepted += len(rows)
        self.tally.available += len(rows)
        self.tally.duplicates += duplicates

    def _arrived_note(self, arrivals: Sequence[Arrival], *, now_s: float) -> ArrivedNote:
        return ArrivedNote(
            at_s=now_s,
            first_frame=self._next_frame,
            first_seq=self._next_seq,
            digests=b"".join([arrival.digest for arrival in arrivals]),
            num_rows=[len(arrival.columns) for arrival in arrivals],
            indexes={
                position: list(arrival.frame_indexes)
                for position, arrival in enumerate(arrivals)
                if not arrival.is_whole
            },
        )

    def drop_unarrived(self, dropped: Iterable[Dropped], *, now_s: float, quarantined: int = 0) -> int:
        """Give trajectories that never arrived their outcome; those with a row keep theirs.

        ``quarantined``: messages that held them. Returns how many were new.

        Raises:
            RecordError: a reason is not one of ``DROP_REASONS``.
        """
        wanted = {item.trajectory_id: item for item in dropped}
        check_reasons(wanted.values())
        for trajectory_id in self.known(wanted):
            del wanted[trajectory_id]
        rows = [
            never_arrived(
                seq, item.trajectory_id, state="dropped", reason=item.reason, detail=item.detail, now_s=now_s
            )
            for seq, item in enumerate(wanted.values(), start=self._next_seq)
        ]
        with transaction(self._db):
            if rows:
                note(self._db, UnarrivedNote(now_s, self._next_seq, [row.trajectory_id for row in rows]))
            self._db.executemany(INSERT_ROW, rows)
            for row in rows:
                note(self._db, DroppedNote(now_s, row.reason, row.detail, [(row.seq, 1)]))
                append_outcomes(self._db, (row.seq,), "dropped", reason=row.reason)
            counts.add_to_counter(self._db, "quarantined", quarantined)
        self._next_seq += len(rows)
        self.tally.dropped.update(item.reason for item in wanted.values())
        self.tally.quarantined += quarantined
        return len(rows)

    # -- batches ---------------------------------------------------------------------------------------------------

    def note_head(self, version: PolicyVersion) -> None:
        """A newer version was announced; one of a lineage that is not open is ignored."""
        if self.head is not None and version.lineage == self.head.lineage and version.step > self.head.step:
            self.head = version

    def newest_step(self, lineage: LineageName) -> int:
        """The newest version of a lineage that an actor can have been given; -1 of one that was never opened.

        A closed lineage published at most the version that its newest leased batch made, or that another forked from.
        """
        if self.head is not None and lineage == self.head.lineage:
            return self.head.step
        if lineage not in self.tree.lineages:
            return -1
        (step,) = self._db.execute("SELECT max(step) FROM batches WHERE lineage = ?", (lineage,)).fetchone()
        forked = (each.fork_step for each in self.tree.lineages.values() if each.parent == lineage)
        return max(self.tree.lineages[lineage].fork_step, -1 if step is None else step + 1, *forked)

    def lease_of(self, learner_id: str, version: PolicyVersion) -> BatchLease | None:
        """What this learner already holds at this version: an answer that got lost is given again."""
        return next(
            (
                lease
                for lease in self.leases.values()
                if lease.learner_id == learner_id and lease.version == version
            ),
            None,
        )

    def holds(self, batch_id: str, *, learner_id: str) -> bool:
        """Whether a batch is leased to this learner, or was committed: no other learner can have its trajectories."""
        lease = self.leases.get(batch_id)
        if lease is not None:
            return lease.learner_id == learner_id
        return batches.is_committed(self._db, batch_id)

    def check_open(self, version: PolicyVersion) -> None:
        """Refuse a learner whose lineage is not the one that is open.

        Raises:
            UnknownVersionError: no learner opened the lineage.
            ConflictError: a newer lineage took over.
        """
        if version.lineage not in self.tree.lineages:
            raise UnknownVersionError(
                f"Lineage {version.lineage} was never opened", fix="call OpenLineage before the first lease"
            )
        if self.head is None or version.lineage != self.head.lineage:
            raise ConflictError(
                f"Lineage {version.lineage} is closed",
                why=f"another learner opened {self.head.lineage if self.head else 'none'}",
                fix="stop this learner, or restart it so that it resumes from the newest checkpoint",
            )

    @property
    def next_seq(self) -> int:
        """The place of the next trajectory that arrives."""
        return self._next_seq

    @property
    def next_batch(self) -> int:
        """The number of the next batch."""
        return self._next_batch

    def lease(
        self,
        candidates: tuple[Candidate, ...],
        *,
        version: PolicyVersion,
        learner_id: str,
        limits: StalenessLimits,
        now_s: float,
        units: bytes = b"",
    ) -> BatchLease:
        """Give trajectories inside ``limits`` to a learner that updates ``version`` by them; ``units``: if sampled."""
        lease = BatchLease(
            batch_id=f"{version}#{self._next_batch}",
            version=version,
            learner_id=learner_id,
            candidates=candidates,
            max_lag=limits.max_lag,
            units=units,
        )
        with transaction(self._db):
            batches.write_lease(self._db, lease, number=self._next_batch, now_s=now_s)
        self._next_batch += 1
        self.leases[lease.batch_id] = lease
        self.pool.remove(candidates)
        self.tally.available -= len(candidates)
        self.tally.leased += len(candidates)
        return lease

    def commit(
        self, batch_id: str, *, version: PolicyVersion, consumptions: Sequence[Consumption], now_s: float
    ) -> list[Location]:
        """A batch was trained at ``version``; returns the frames that no trajectory needs any more.

        The lag is the learner's or our own count, whichever is larger: a learner that counts wrong shows. Committing
        a batch again at the same version changes nothing.

        Raises:
            ConflictError: the lease ended, or the batch was committed at another version.
            RecordError: the commit does not name exactly the trajectories of its batch.
        """
        lease = self.leases.get(batch_id)
        if lease is None:
            batches.check_committed(self._db, batch_id, version)
            return []
        self.check_open(version)
        verdicts = {item.trajectory_id: item.verdict for item in consumptions}
        if verdicts.keys() != {candidate.trajectory_id for candidate in lease.candidates}:
            raise RecordError(
                f"A commit does not name the trajectories of its batch {batch_id}",
                why=f"it names {len(verdicts)}, the batch holds {len(lease.candidates)}, and is trained whole",
                fix="release the batch with what must be dropped, and lease another",
            )
        for candidate in lease.candidates:
            verdict = verdicts[candidate.trajectory_id]
            lag = max(verdict.lag, lag_of(candidate.spans, version, self.tree))
            verdicts[candidate.trajectory_id] = msgspec.structs.replace(verdict, lag=lag)
        with transaction(self._db):
            batches.write_commit(self._db, lease, version=version, verdicts=verdicts, now_s=now_s)
        del self.leases[batch_id]
        self.note_head(produced_by(version))
        self.tally.leased -= len(verdicts)
        self.tally.note_trained(verdict.lag for verdict in verdicts.values())
        return self.frames.finish(lease.candidates)

    def release(
        self, batch_id: str, *, dropped: Sequence[Dropped], now_s: float, expired: bool = False
    ) -> list[Location]:
        """Give a batch back: the named trajectories, and with them their groups, end; the others are available again.

        ``expired``: the lease ended without its learner. Releasing a batch again changes nothing. Returns the
        frames that no trajectory needs any more.

        Raises:
            NotFoundError: there was no such batch.
            ConflictError: the batch was committed.
            RecordError: a reason is not one of ``DROP_REASONS``, or a trajectory is not of this batch.
        """
        lease = self.leases.get(batch_id)
        if lease is None:
            batches.check_released(self._db, batch_id)
            return []
        check_reasons(dropped)
        by_id = {candidate.trajectory_id: candidate for candidate in lease.candidates}
        if not by_id.keys() >= {item.trajectory_id for item in dropped}:
            raise RecordError(f"A release of batch {batch_id} drops trajectories that are not in it")
        drops: dict[int, Drop] = {}
        for item in dropped:
            lost = by_id[item.trajectory_id]
            members = (other for other in lease.candidates if other.group_id == lost.group_id)
            for drop in drop_group(members, lost=lost, reason=item.reason, detail=item.detail):
                drops.setdefault(drop.candidate.seq, drop)
        kept = [candidate for candidate in lease.candidates if candidate.seq not in drops]
        with transaction(self._db):
            batches.write_release(self._db, lease, expired=expired)
            batches.write_drops(self._db, list(drops.values()), now_s=now_s)
        del self.leases[batch_id]
        self.tally.leases_expired += expired
        self.tally.leased -= len(lease.candidates)
        self.tally.available += len(kept)
        self.pool.add(kept)
        self.tally.dropped.update(drop.reason for drop in drops.values())
        return self.frames.finish(drop.candidate for drop in drops.values())

    def drop(self, drops: Sequence[Drop], *, now_s: float) -> list[Location]:
        """Available trajectories end without a gradient; returns the frames that no trajectory needs any more."""
        with transaction(self._db):
            batches.write_drops(self._db, drops, now_s=now_s)
        gone = [drop.candidate for drop in drops]
        self.pool.remove(gone)
        self.tally.available -= len(gone)
        self.tally.dropped.update(drop.reason for drop in drops)
        return self.frames.finish(gone)

    # -- lineages --------------------------------------------------------------------------------------------------

    def open_lineage(
        self,
        lineage: Lineage,
        *,
        learner_id: str,
        consumed: Sequence[ConsumedBatch],
        segments: Collection[int],
        now_s: float,
        ancestors: Sequence[Lineage] = (),
    ) -> int:
        """A learner started or was restored (see ``restore``). Idempotent while no other lineage was opened since.

        ``ancestors``: lineages of the run that this one was forked from, parents first; they are added to an empty
        ledger only, so that a lost ledger is never mistaken for a new run's.
        ``segments`` are those still on disk: what was trained in a lost branch and has no payload left cannot be
        trained again, and is dropped as superseded. Returns how many trajectories were revived.

        Raises:
            ConflictError: a newer lineage took over.
            UnknownVersionError: the parent is unknown, or the name is taken by another branch.
        """
        if lineage.name in self.tree.lineages and self.head is not None and lineage.name != self.head.lineage:
            raise ConflictError(
                f"Lineage {lineage.name} was opened before and is closed",
                why=f"another learner opened {self.head.lineage} since",
                fix="stop this learner, or restart it so that it resumes from the newest checkpoint",
            )
        tree = self.tree
        inherited = () if tree.lineages else ancestors
        for known in (*inherited, lineage):
            tree = tree.add(known)
        folding.check_restorable(read_folded(self._db), lineage, tree)
        with durable_transaction(self._db):
            restore.write_lineages(self._db, inherited, learner_id=learner_id, now_s=now_s)
            revived = restore.open_lineage(
                self._db,
                lineage,
                tree,
                learner_id=learner_id,
                consumed=[folding.without_folded(batch, self._folded, self._db) for batch in consumed],
                leases=self.leases.values(),
                segments=segments,
                now_s=now_s,
            )
            memory = load_memory(self._db)  # what fails here opens nothing
        self._take(memory)
        return revived

    def mark_checkpointed(self, version: PolicyVersion) -> None:
        """Updates up to ``version`` are safe in a checkpoint.

        Raises:
            UnknownVersionError: no learner opened the lineage.
        """
        surviving_steps(version, self.tree)
        noted = (("checkpoint_lineage", version.lineage), ("checkpoint_step", str(version.step)))
        with transaction(self._db):
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", noted)

    def newest_segment(self) -> int:
        """The highest segment number any frame was ever written to; 0 before the first."""
        row = self._db.execute("SELECT segment FROM frames ORDER BY frame_id DESC LIMIT 1").fetchone()
        return row[0] if row else read_folded(self._db).through_segment

    def segments_needed(self) -> set[int]:
        """Segments with a payload that may be needed: its trajectory waits, or no checkpoint has its update."""
        return self.frames.segments() | restore.segments_without_checkpoint(self._db, self.tree)

    # -- asking ----------------------------------------------------------------------------------------------------

    def outcomes(self, cursor: int, *, limit: int) -> tuple[list[Outcome], int]:
        """Outcomes after ``cursor`` and the next cursor (see ``outcome_log``)."""
        return read_outcomes(self._db, cursor, limit=limit)

    def prune_outcomes(self, *, outcomes_max: int) -> int:
        """Forget the oldest outcomes beyond the bound; returns how many."""
        with transaction(self._db):
            return prune_outcomes(self._db, outcomes_max=outcomes_max)

    def count_ended(self) -> None:
        """Count rows that have ended, if enough have (``counted_rows``)."""
        with transaction(self._db):
            counted_rows.grow(self._db, last=self._next_seq - 1)

    def fold(self, *, rows_kept_max: int, oldest_segment: int, read_to: int) -> int:
        """Fold the oldest rows beyond ``rows_kept_max``, at most about ``folding.FOLD_ROWS``; returns how many.

        ``oldest_segment``, ``read_to``: see ``folding.fold``.
        """
        excess = self._next_seq - 1 - self.num_folded - rows_kept_max
        if excess <= 0:
            return 0
        with transaction(self._db):
            folded = folding.fold(
                self._db,
                self._folded,
                self.tree,
                rows_max=min(excess, folding.FOLD_ROWS),
                oldest_segment=oldest_segment,
                read_to=read_to,
            )
        before = self.num_folded
        if folded is not None:
            self._folded, self.num_folded = folded, read_folded(self._db).through_seq
        return self.num_folded - before

    def totals(self) -> LedgerTotals:
        """Counts by state, from memory; only what was used again after a restore is queried."""
        return self.tally.totals(trained_twice=counts.trained_twice(self._db, self.tree))

    @property
    def connection(self) -> sqlite3.Connection:
        """For the read-only queries of ``reading``, on the writer's own connection."""
        return self._db


def _names_of(arrivals: Sequence[Arrival]) -> list[TrajectoryId]:
    return [name for arrival in arrivals for name in arrival.columns.trajectory_id]
