"""Sampled batches in the ledger: held by a learner, then committed or released.

A sampled batch names units, of which several may be of one trajectory and some of trajectories that were used before.
Only trajectories that no surviving gradient used are leased, so that nothing ends them meanwhile; two batches may name
the same ones, and then the first of them holds them. The first commit makes them trained (I2); every commit keeps the
units of its update (``accounting``).
"""

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.batching import Candidate, Drop
from tidegate.core.errors import RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.core.replay import produced_by
from tidegate.core.staleness import StalenessLimits, lag_of
from tidegate.trajectory_store import batches, counts
from tidegate.trajectory_store.batches import check_reasons
from tidegate.trajectory_store.ledger import Ledger
from tidegate.trajectory_store.replay.uses import decode_units, encode_units
from tidegate.trajectory_store.schema import transaction
from tidegate.trajectory_store.state import BatchLease
from tidegate.wire.clients.trajectory_store import Consumption, Dropped

EVICTED = "evicted from the replay buffer before any of its units was used"


class SampledCommit(msgspec.Struct, frozen=True, eq=False):
    """What a commit says of a sampled batch: its units in order, and the largest lag the learner found in it."""

    units: NDArray[np.int64]
    max_lag: int


class SampledBatches:
    """The ledger's methods for batches that are sampled; each is one transaction."""

    def __init__(self, ledger: Ledger, *, units: int) -> None:
        """``units``: of one trajectory."""
        self._ledger = ledger
        self._units = units

    def lease(
        self,
        ids_B: NDArray[np.int64],
        *,
        version: PolicyVersion,
        learner_id: str,
        now_s: float,
        limits: StalenessLimits,
    ) -> BatchLease:
        """Hand units to a learner that will update ``version`` with them; ``limits``: the budget in force."""
        seqs = np.unique(ids_B // self._units).tolist()
        return self._ledger.lease(
            tuple(self._ledger.pool.waiting(seqs)),
            version=version,
            learner_id=learner_id,
            now_s=now_s,
            limits=limits,
            units=encode_units(ids_B),
        )

    def held(self) -> list[NDArray[np.int64]]:
        """The units of every batch that a learner holds."""
        return [decode_units(lease.units) for lease in self._ledger.leases.values() if lease.units]

    def unused(self) -> set[int]:
        """Trajectories that no surviving gradient used, available or held."""
        ledger = self._ledger
        held = {candidate.seq for lease in ledger.leases.values() for candidate in lease.candidates}
        return held | {candidate.seq for candidate in ledger.pool}

    def commit(
        self,
        batch_id: str,
        *,
        version: PolicyVersion,
        commit: SampledCommit,
        consumptions: Sequence[Consumption],
        own_max_lag: int,
        num_refused: int,
        num_ignored: int,
        now_s: float,
    ) -> list[Candidate]:
        """A batch was trained at ``version``; returns the trajectories that it used first.

        ``consumptions``: of those that had not been used when they were sampled. ``own_max_lag``: the store's count,
        beside the learner's. ``num_refused`` and ``num_ignored``: priorities (``buffer.PriorityReport``).

        Raises:
            ConflictError: a newer lineage took over.
            RecordError: the commit names other units than its batch, or not all of its first uses.
        """
        ledger = self._ledger
        lease = ledger.leases[batch_id]
        ledger.check_open(version)
        if encode_units(commit.units) != lease.units:
            raise RecordError(
                f"A commit does not name the units of its batch {batch_id}",
                fix="commit the units in the order in which they were sampled",
            )
        first = self._first_uses(lease)
        verdicts = {item.trajectory_id: item.verdict for item in consumptions}
        missing = [item.trajectory_id for item in first if item.trajectory_id not in verdicts]
        if missing:
            raise RecordError(
                f"A commit of batch {batch_id} does not say at which lag {missing[0]} was used first"
            )
        for candidate in first:
            verdict = verdicts[candidate.trajectory_id]
            lag = max(verdict.lag, lag_of(candidate.spans, version, ledger.tree))
            verdicts[candidate.trajectory_id] = msgspec.structs.replace(verdict, lag=lag)
        max_lag = max([commit.max_lag, own_max_lag, *(verdicts[item.trajectory_id].lag for item in first)])
        whole = msgspec.structs.replace(lease, candidates=tuple(first))
        with transaction(ledger.connection) as db:
            batches.write_commit(
                db, whole, version=version, verdicts=verdicts, now_s=now_s, units_lag_max=max_lag
            )
            counts.add_to_counter(db, "replay_refused", num_refused)
            counts.add_to_counter(db, "replay_ignored", num_ignored)
        del ledger.leases[batch_id]
        self._take_from_others({candidate.seq for candidate in first})
        ledger.note_head(produced_by(version))
        ledger.tally.leased -= len(first)
        ledger.tally.note_trained(verdicts[item.trajectory_id].lag for item in first)
        ledger.tally.max_lag_trained = max(ledger.tally.max_lag_trained, max_lag)
        ledger.frames.finish(first)
        return first

    def _first_uses(self, lease: BatchLease) -> list[Candidate]:
        """The batch's trajectories that no gradient used: its own, and those that another batch holds."""
        named = set(np.unique(decode_units(lease.units) // self._units).tolist())
        others = (other for other in self._ledger.leases.values() if other is not lease)
        return [
            *lease.candidates,
            *(candidate for other in others for candidate in other.candidates if candidate.seq in named),
        ]

    def _take_from_others(self, seqs: Collection[int]) -> None:
        leases = self._ledger.leases
        for batch_id, other in leases.items():
            left = tuple(candidate for candidate in other.candidates if candidate.seq not in seqs)
            if len(left) < len(other.candidates):
                leases[batch_id] = msgspec.structs.replace(other, candidates=left)

    def release(
        self,
        batch_id: str,
        *,
        dropped: Sequence[Dropped],
        resident: Collection[int],
        now_s: float,
        expired: bool = False,
    ) -> list[Drop]:
        """Give a batch back; returns what ended by it.

        ``expired``: the lease ended without its learner. ``dropped`` end, where nothing had used them; so do those
        that are evicted meanwhile (not ``resident``). What another batch names as well is held by that one; the others
        are available again.

        Raises:
            RecordError: a reason is not one of ``DROP_REASONS``.
        """
        check_reasons(dropped)
        ledger = self._ledger
        lease = ledger.leases[batch_id]
        reasons = {item.trajectory_id: item for item in dropped}
        drops: list[Drop] = []
        kept: list[Candidate] = []
        moved: dict[str, list[Candidate]] = {}
        for candidate in lease.candidates:
            other = self._also_named_by(candidate.seq, but=batch_id)
            ended = reasons.get(candidate.trajectory_id)
            if ended is not None:
                drops.append(Drop(candidate, ended.reason, ended.detail))
            elif other is not None:
                moved.setdefault(other, []).append(candidate)
            elif candidate.seq not in resident:
                drops.append(Drop(candidate, "unsampled", EVICTED))
            else:
                kept.append(candidate)
        with transaction(ledger.connection) as db:
            batches.write_release(db, lease, expired=expired)
            for other, candidates in moved.items():
                db.executemany(
                    "UPDATE trajectories SET state = 'leased', batch_id = ?, leased_at_s = ? WHERE seq = ?",
                    ((other, now_s, candidate.seq) for candidate in candidates),
                )
            batches.write_drops(db, drops, now_s=now_s)
        del ledger.leases[batch_id]
        ledger.tally.leases_expired += expired
        for other, candidates in moved.items():
            found = ledger.leases[other]
            ledger.leases[other] = msgspec.structs.replace(found, candidates=(*found.candidates, *candidates))
        ledger.tally.leased -= len(drops) + len(kept)
        ledger.tally.available += len(kept)
        ledger.pool.add(kept)
        ledger.tally.dropped.update(drop.reason for drop in drops)
        ledger.frames.finish(drop.candidate for drop in drops)
        return drops

    def _also_named_by(self, seq: int, *, but: str) -> str | None:
        for batch_id, other in self._ledger.leases.items():
            if batch_id != but and other.units and seq in decode_units(other.units) // self._units:
                return batch_id
        return None
