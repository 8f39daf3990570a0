"""Client of the trajectory store."""

from collections.abc import AsyncIterator, Sequence
from typing import cast

import grpc
import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.audit import BudgetTotals, LedgerTotals, ReplayTotals
from tidegate.core.errors import RecordError
from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import StageTiming, Trajectory
from tidegate.core.staleness import Fresh, Lineage, LineageTree, StalenessLimits
from tidegate.core.verification import Finding, FindingKind, Verification
from tidegate.v1 import trajectory_pb2
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.v1.trajectory_store_service_pb2_grpc import TrajectoryStoreServiceStub
from tidegate.wire.chunks import chunk_deserializer, chunk_serializer
from tidegate.wire.clients.drops import Dropped, drops_to_proto
from tidegate.wire.clients.remote import AUDIT_DEADLINE_S, DEADLINE_S, POLL_GRACE_S, remote_errors
from tidegate.wire.clients.streamed_batches import (
    SERVICE,
    LeasedBatch,
    batch_request,
    leased_ages_s,
    leased_trajectories,
    received,
)
from tidegate.wire.convert import (
    envelope_from_proto,
    lineage_to_proto,
    stage_from_proto,
    tree_from_proto,
    version_from_proto,
    version_to_proto,
)
from tidegate.wire.digest import digest_of
from tidegate.wire.samples import ReplaySample, decode_sample
from tidegate.wire.subjects import CHUNK_BYTES

LEASE_CHUNK_FIELD = 4
SAMPLE_CHUNK_FIELD = 2
UPLOAD_CHUNK_FIELD = 2
UPDATE_CHUNK_FIELD = 5
_LEASE = "/tidegate.v1.TrajectoryStoreService/LeaseBatch"
_UPDATE = "/tidegate.v1.TrajectoryStoreService/ReadUpdate"
_SAMPLE = "/tidegate.v1.TrajectoryStoreService/SampleBatch"
# Frames of an update, of which each may lie in another file of a slow disk.
UPDATE_WAIT_S = 120.0
_UPLOAD = "/tidegate.v1.TrajectoryStoreService/UploadPayload"


class Renewal(msgspec.Struct, frozen=True):
    """The answer to a renewal: which leases are not held any more, and how long one lasts without a renewal."""

    lost: frozenset[str]
    lease_timeout_s: float


class TrainedUpdate(msgspec.Struct, frozen=True, eq=False):
    """An update of ``version`` that the ledger has: its trajectories, and the lag of each."""

    version: PolicyVersion
    trajectories: list[Trajectory]
    lags: list[int]


class Consumption(msgspec.Struct, frozen=True):
    """The learner's measurements of one trajectory just before the loss."""

    trajectory_id: TrajectoryId
    verdict: Fresh


class SampledUnits(msgspec.Struct, frozen=True, eq=False):
    """The units of a sampled batch in their order, the priorities that the update gave them, and the largest lag."""

    ids: NDArray[np.int64]
    priorities: NDArray[np.float32] | None
    max_lag: int


class ConsumedBatch(msgspec.Struct, frozen=True):
    """A batch contained in a checkpoint; sent again at a restore, in case its commit never arrived.

    Of a sampled batch, ``consumptions`` are those of trajectories that nothing had used when it was sampled, ``units``
    the places of its units by trajectory, and ``max_lag`` the largest lag in it.
    """

    batch_id: str
    version: PolicyVersion
    consumptions: list[Consumption]
    units: dict[TrajectoryId, list[int]] = {}
    max_lag: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """A change of a trajectory's state, in ledger order: accepted, trained, dropped, or available (revived).

    ``trained_at`` is the version the gradient was applied to, when it was trained.
    """

    trajectory_id: TrajectoryId
    state: str
    reason: str = ""
    curriculum_bin: str = "all"
    reward: float | None = None
    length_tokens: int = 0
    trained_at: PolicyVersion | None = None


class TrajectoryStatus(msgspec.Struct, frozen=True, eq=False):
    """One row of the ledger with its provenance. ``uses``: with replay, of its units by the updates that survive."""

    trajectory: Trajectory
    state: str
    reason: str
    detail: str
    trained_at: PolicyVersion | None
    stale_by_versions: int
    span: int
    age_s: float
    stages: tuple[StageTiming, ...]
    uses: int | None = None


def _consumption(item: Consumption) -> pb.Consumption:
    return pb.Consumption(
        trajectory_id=item.trajectory_id,
        stale_by_versions=item.verdict.lag,
        span=item.verdict.span,
        age_s=item.verdict.age_s,
    )


def _sampled(units: SampledUnits) -> pb.SampledUnits:
    priorities = units.priorities
    return pb.SampledUnits(
        ids=units.ids.astype("<i8").tobytes(),
        priorities=b"" if priorities is None else priorities.astype("<f4").tobytes(),
        max_lag=units.max_lag,
    )


class TrajectoryStoreClient:
    """Typed calls to one store shard."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """``channel``: shared; its owner closes it."""
        self._stub = TrajectoryStoreServiceStub(channel)
        self._lease = channel.unary_stream(
            _LEASE,
            request_serializer=pb.LeaseBatchRequest.SerializeToString,
            response_deserializer=chunk_deserializer(pb.LeaseBatchResponse, LEASE_CHUNK_FIELD),
        )
        self._sample = channel.unary_stream(
            _SAMPLE,
            request_serializer=pb.SampleBatchRequest.SerializeToString,
            response_deserializer=chunk_deserializer(pb.SampleBatchResponse, SAMPLE_CHUNK_FIELD),
        )
        self._update = channel.unary_stream(
            _UPDATE,
            request_serializer=pb.ReadUpdateRequest.SerializeToString,
            response_deserializer=chunk_deserializer(pb.ReadUpdateResponse, UPDATE_CHUNK_FIELD),
        )
        self._upload = channel.stream_unary(
            _UPLOAD,
            request_serializer=chunk_serializer(UPLOAD_CHUNK_FIELD),
            response_deserializer=pb.UploadPayloadResponse.FromString,
        )

    async def lease_batch(
        self,
        version: PolicyVersion,
        *,
        batch_size: int,
        limits: StalenessLimits,
        max_wait_s: float,
        learner_id: str,
        held: Sequence[str] = (),
    ) -> LeasedBatch | None:
        """The next full batch inside the budget at ``version``; None when none was ready within ``max_wait_s``.

        ``held``: batches that the learner trains, or has trained without an acknowledged commit; while one of them is
        lost there is none.

        Raises:
            RecordError: the streamed frames do not add up.
            UnavailableError: the store is away.
        """
        request = batch_request(
            pb.LeaseBatchRequest,
            version,
            batch_size,
            limits,
            max_wait_s=max_wait_s,
            learner_id=learner_id,
            held=held,
        )
        head, data = await received(self._lease, request, max_wait_s=max_wait_s)
        if head is None or not head.batch_id:
            return None
        return LeasedBatch(
            head.batch_id, leased_trajectories(head, data), leased_ages_s(head), waited_s=head.waited_s
        )

    async def read_update(self, version: PolicyVersion) -> TrainedUpdate | None:
        """The batch of the surviving branch's update of ``version``; None if there is none, or a payload is gone.

        Raises:
            RecordError: the streamed frames do not add up.
            UnavailableError: the store is away.
        """
        request = pb.ReadUpdateRequest(version=version_to_proto(version))
        head, data = await received(self._update, request, max_wait_s=UPDATE_WAIT_S)
        if head is None or not head.HasField("version"):
            return None
        lags = dict(zip(head.trajectory_ids, head.lags, strict=True))
        trajectories = leased_trajectories(head, data)
        return TrainedUpdate(
            version_from_proto(head.version),
            trajectories,
            [lags[each.trajectory_id] for each in trajectories],
        )

    async def sample_batch(
        self,
        version: PolicyVersion,
        *,
        batch_size: int,
        limits: StalenessLimits,
        max_wait_s: float,
        learner_id: str,
        held: Sequence[str] = (),
    ) -> ReplaySample | None:
        """The next units of a store that replays, for an update of ``version``; None when none could be drawn in time.

        ``held``: as in ``lease_batch``.

        Raises:
            RecordError: the streamed frame is not what was drawn, or the store does not replay.
            UnavailableError: the store is away.
        """
        request = batch_request(
            pb.SampleBatchRequest,
            version,
            batch_size,
            limits,
            max_wait_s=max_wait_s,
            learner_id=learner_id,
            held=held,
        )
        head, data = await received(self._sample, request, max_wait_s=max_wait_s)
        if head is None or not head.frame_size:
            return None
        if len(data) != head.frame_size:
            raise RecordError(f"A sampled batch of {head.frame_size} bytes arrived as {len(data)} bytes")
        return msgspec.structs.replace(decode_sample(data), waited_s=head.waited_s)

    async def renew_leases(self, batch_ids: Sequence[str], *, learner_id: str) -> Renewal:
        """Keep leases from expiring."""
        request = pb.RenewLeasesRequest(learner_id=learner_id, batch_ids=batch_ids)
        with remote_errors(SERVICE):
            response = await self._stub.RenewLeases(request, timeout=DEADLINE_S)
        return Renewal(frozenset(response.lost_batch_ids), response.lease_timeout_s)

    async def commit_batch(
        self,
        batch_id: str,
        *,
        version: PolicyVersion,
        consumptions: Sequence[Consumption],
        sampled: SampledUnits | None = None,
    ) -> None:
        """Record that a batch was trained at ``version``, with its units if it was sampled. Idempotent.

        Raises:
            ConflictError: the lease ended, because it was not renewed or another learner opened a lineage.
        """
        request = pb.CommitBatchRequest(
            batch_id=batch_id,
            version=version_to_proto(version),
            consumptions=[_consumption(item) for item in consumptions],
            sampled=None if sampled is None else _sampled(sampled),
        )
        with remote_errors(SERVICE):
            await self._stub.CommitBatch(request, timeout=DEADLINE_S)

    async def release_batch(self, batch_id: str, *, dropped: Sequence[Dropped] = ()) -> None:
        """Release a batch: ``dropped`` end, the others become available again."""
        request = pb.ReleaseBatchRequest(batch_id=batch_id, dropped=drops_to_proto(dropped))
        with remote_errors(SERVICE):
            await self._stub.ReleaseBatch(request, timeout=DEADLINE_S)

    async def open_lineage(
        self,
        lineage: Lineage,
        *,
        learner_id: str,
        consumed: Sequence[ConsumedBatch] = (),
        ancestors: Sequence[Lineage] = (),
    ) -> tuple[LineageTree, int]:
        """Start or restore: ends every lease, revives what was trained after the fork, returns the whole tree.

        ``ancestors``: lineages of the run that this one was forked from, for a store that has none yet.
        """
        request = pb.OpenLineageRequest(
            lineage=lineage_to_proto(lineage),
            learner_id=learner_id,
            consumed=[
                pb.ConsumedBatch(
                    batch_id=batch.batch_id,
                    version=version_to_proto(batch.version),
                    consumptions=[_consumption(item) for item in batch.consumptions],
                    units=[
                        pb.ConsumedUnits(trajectory_id=name, places=places)
                        for name, places in batch.units.items()
                    ],
                    max_lag=batch.max_lag,
                )
                for batch in consumed
            ],
            ancestors=[lineage_to_proto(ancestor) for ancestor in ancestors],
        )
        with remote_errors(SERVICE):
            # The store reads its whole ledger.
            response = await self._stub.OpenLineage(request, timeout=AUDIT_DEADLINE_S)
        return tree_from_proto(response.lineages), response.revived

    async def mark_checkpointed(self, version: PolicyVersion) -> None:
        """Rows trained up to ``version`` are in a checkpoint; their payload may be deleted."""
        with remote_errors(SERVICE):
            await self._stub.MarkCheckpointed(
                pb.MarkCheckpointedRequest(version=version_to_proto(version)), timeout=DEADLINE_S
            )

    async def watch_outcomes(
        self, cursor: int, *, limit: int, max_wait_s: float
    ) -> tuple[list[Outcome], int]:
        """Outcomes after ``cursor`` in ledger order and the next cursor; empty when nothing changed in time."""
        request = pb.WatchOutcomesRequest(cursor=cursor, limit=limit, max_wait_s=max_wait_s)
        with remote_errors(SERVICE):
            response = await self._stub.WatchOutcomes(request, timeout=max_wait_s + POLL_GRACE_S)
        outcomes = [
            Outcome(
                trajectory_id=TrajectoryId(outcome.trajectory_id),
                state=outcome.state,
                reason=outcome.reason,
                curriculum_bin=outcome.curriculum_bin,
                reward=outcome.reward if outcome.HasField("reward") else None,
                length_tokens=outcome.length_tokens,
                trained_at=version_from_proto(outcome.trained_at) if outcome.HasField("trained_at") else None,
            )
            for outcome in response.outcomes
        ]
        return outcomes, response.next_cursor

    async def drop_unarrived(self, dropped: Sequence[Dropped], *, proof: str = "") -> int:
        """Drop trajectories that no actor will finish; returns how many had no outcome before.

        ``proof``: of their task, or of the task queue (``wire.task_proof``).

        Raises:
            RecordError: the proof is of other trajectories, or none.
        """
        with remote_errors(SERVICE):
            response = await self._stub.DropUnarrived(
                pb.DropUnarrivedRequest(dropped=drops_to_proto(dropped), proof=proof), timeout=DEADLINE_S
            )
        return response.dropped

    async def ledger(self) -> tuple[LedgerTotals, PolicyVersion | None]:
        """Counts by state, and the newest version that the store knows."""
        with remote_errors(SERVICE):
            response = await self._stub.GetLedger(pb.GetLedgerRequest(), timeout=DEADLINE_S)
        return _totals(response), version_from_proto(response.head) if response.HasField("head") else None

    async def read_ledger(self, *, at: PolicyVersion | None = None) -> tuple[LedgerTotals, set[str]]:
        """One moment of the ledger: totals counted from every row, and every trajectory id.

        ``at``: the version before which the learner's own total of samples is known, for a run with replay.
        """
        request = pb.ReadLedgerRequest(at=None if at is None else version_to_proto(at))
        totals: LedgerTotals | None = None
        ids: set[str] = set()
        with remote_errors(SERVICE):
            async for response in self._stub.ReadLedger(request, timeout=AUDIT_DEADLINE_S):
                if response.HasField("totals"):
                    totals = _totals(response.totals)
                ids.update(response.trajectory_ids)
        if totals is None:
            raise RecordError("The trajectory store sent no totals", why="it runs another version")
        return totals, ids

    async def verify_ledger(self, *, head: str = "") -> Verification:
        """Hold the ledger against its hash chain; ``head``: an entry's digest noted earlier, or its first digits."""
        with remote_errors(SERVICE):
            response = await self._stub.VerifyLedger(
                pb.VerifyLedgerRequest(head=head), timeout=AUDIT_DEADLINE_S
            )
        return Verification(
            num_entries=response.num_entries,
            num_rows=response.num_rows,
            num_payloads=response.num_payloads,
            head=response.head,
            findings=[
                Finding(kind=cast("FindingKind", each.kind), what=each.what, why=each.why)
                for each in response.findings
            ],
            num_findings=response.num_findings,
            num_folded=response.num_folded,
        )

    async def trajectory(self, trajectory_id: str) -> TrajectoryStatus:
        """One trajectory's row.

        Raises:
            NotFoundError: the ledger has no such trajectory.
        """
        with remote_errors(SERVICE):
            response = await self._stub.GetTrajectory(
                pb.GetTrajectoryRequest(trajectory_id=trajectory_id), timeout=DEADLINE_S
            )
        return TrajectoryStatus(
            trajectory=envelope_from_proto(response.envelope, {}),
            state=response.state,
            reason=response.reason,
            detail=response.detail,
            trained_at=version_from_proto(response.trained_at) if response.HasField("trained_at") else None,
            stale_by_versions=response.stale_by_versions,
            span=response.span,
            age_s=response.age_s,
            stages=tuple(stage_from_proto(stage) for stage in response.stages),
            uses=response.uses if response.HasField("uses") else None,
        )

    async def upload(self, payload_id: str, frame: bytes) -> bytes:
        """Upload a frame too large for a message; returns the reference to send in its place. Idempotent."""
        reference = trajectory_pb2.PayloadReference(
            payload_id=payload_id, size=len(frame), digest=digest_of(frame)
        )

        async def requests() -> AsyncIterator[pb.UploadPayloadRequest | memoryview]:
            yield pb.UploadPayloadRequest(reference=reference)
            view = memoryview(frame)
            for start in range(0, len(view), CHUNK_BYTES):
                yield view[start : start + CHUNK_BYTES]

        with remote_errors(SERVICE):
            await self._upload(requests(), timeout=6 * DEADLINE_S)
        return reference.SerializeToString()


def _totals(response: pb.GetLedgerResponse) -> LedgerTotals:
    return LedgerTotals(
        available=response.available,
        leased=response.leased,
        trained=response.trained,
        dropped=dict(response.dropped),  # pyright: ignore[reportArgumentType]  # keys are drop reasons
        duplicates=response.duplicates,
        quarantined=response.quarantined,
        trained_twice=response.trained_twice,
        max_lag_trained=response.max_lag_trained,
        trained_by_lag=dict(response.trained_by_lag),
        revived=response.revived,
        replay=_replay_totals(response.replay) if response.HasField("replay") else None,
        budgets=BudgetTotals(
            over=response.budgets.over,
            unnoted=response.budgets.unnoted,
            widest=response.budgets.widest if response.budgets.HasField("widest") else None,
            worst=response.budgets.worst,
        ),
    )


def _replay_totals(message: pb.ReplayTotals) -> ReplayTotals:
    return ReplayTotals(
        inserted=message.inserted,
        sampled=message.sampled,
        recounted=message.recounted,
        sampled_at=message.sampled_at if message.HasField("sampled_at") else None,
        lost_updates=message.lost_updates,
        overused=message.overused,
        uses_max=message.uses_max,
        torn=message.torn,
        priorities_refused=message.priorities_refused,
        priorities_ignored=message.priorities_ignored,
    )
