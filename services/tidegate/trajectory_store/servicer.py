"""The gRPC service of the store. Long polls wait here; all state is in ``store``."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from grpc import aio

from tidegate.core.audit import LedgerTotals
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import DropReason
from tidegate.core.staleness import Fresh, StalenessLimits, tighter
from tidegate.runtime.clock import Clock
from tidegate.runtime.races import is_set_within
from tidegate.runtime.replication.replica import CaughtUp, on_disk
from tidegate.runtime.rpc import Registration
from tidegate.runtime.threads import WorkerThread, iterate_in_thread
from tidegate.trajectory_store.opening_rate import OpeningRate
from tidegate.trajectory_store.reading import moment
from tidegate.trajectory_store.replay.sampled_batches import SampledCommit
from tidegate.trajectory_store.replay.uses import decode_units
from tidegate.trajectory_store.store import Store
from tidegate.trajectory_store.verifying import verify
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.v1.trajectory_store_service_pb2_grpc import (
    TrajectoryStoreServiceServicer,
    add_TrajectoryStoreServiceServicer_to_server,
)
from tidegate.wire import store_requests
from tidegate.wire.bounds import DETAIL_CHARS_MAX, check_name, check_version
from tidegate.wire.chunks import chunk_deserializer, chunk_serializer
from tidegate.wire.clients.trajectory_store import (
    LEASE_CHUNK_FIELD,
    SAMPLE_CHUNK_FIELD,
    UPDATE_CHUNK_FIELD,
    UPLOAD_CHUNK_FIELD,
    ConsumedBatch,
    Consumption,
    Dropped,
    Outcome,
)
from tidegate.wire.convert import (
    envelope_to_proto,
    lineage_from_proto,
    stage_to_proto,
    tree_to_proto,
    version_from_proto,
    version_to_proto,
)
from tidegate.wire.reference import reference_from_proto
from tidegate.wire.subjects import CHUNK_BYTES, FIRST_CHUNK_BYTES

NAME = "tidegate.v1.TrajectoryStoreService"
# A longer wait is answered empty and repeated; an abandoned poll is freed no sooner.
WAIT_S_MAX = 30.0
# Outcomes that only say "accepted" wait this long for others, as an answer costs both sides more than what it says: 1
# to 2 ms of CPU, of a learner step's 66. What frees budget (trained, dropped) is answered at once.
ACCEPTED_LINGER_S = 0.01
# And this long while the learner is behind, with a whole batch that it has not requested: no call waits for more.
ACCEPTED_LINGER_BEHIND_S = 0.1

# An upload reserves the bytes that it promises: a sender that stopped would keep them from others.
UPLOAD_SILENCE_S = 30.0

_Context = aio.ServicerContext[Any, Any]
BatchT = TypeVar("BatchT")
TakenT_co = TypeVar("TakenT_co", covariant=True)


class _TakesBatch(Protocol[TakenT_co]):
    """Takes the next batch for an update of ``version``; None while there is too little."""

    def __call__(
        self,
        version: PolicyVersion,
        *,
        batch_size: int,
        limits: StalenessLimits,
        learner_id: str,
        now_s: float,
    ) -> TakenT_co | None:
        """The batch."""
        ...


class TrajectoryStoreServicer(TrajectoryStoreServiceServicer):
    """The store as a gRPC service."""

    def __init__(self, store: Store, clock: Clock, *, budget: Callable[[], StalenessLimits]) -> None:
        """``budget``: in force here at the moment; no batch is judged by a wider one, whatever a learner asks for.

        ``stop_waiting`` ends the long polls when the service drains.
        """
        self._store = store
        self._budget = budget
        self._clock = clock
        self._opening_rate = OpeningRate()
        self._draining = False
        self._verifying = WorkerThread("verify")
        # As in the learner's last request.
        self._batch_size = 0

    def registration(self, caught_up: CaughtUp = on_disk) -> Registration:
        """How the lifecycle serves it: bulk chunks go around protobuf, and answers wait for the replica."""
        return Registration(
            add=add_TrajectoryStoreServiceServicer_to_server,
            servicer=self,
            name=NAME,
            raw_requests={"UploadPayload": chunk_deserializer(pb.UploadPayloadRequest, UPLOAD_CHUNK_FIELD)},
            raw_responses={
                "LeaseBatch": chunk_serializer(LEASE_CHUNK_FIELD),
                "SampleBatch": chunk_serializer(SAMPLE_CHUNK_FIELD),
                "ReadUpdate": chunk_serializer(UPDATE_CHUNK_FIELD),
            },
            before_answer=caught_up,
        )

    def stop_waiting(self) -> None:
        """Answer every long poll with what there is, now and from now on."""
        self._draining = True
        self._store.arrived.notify()
        self._store.outcome_added.notify()

    async def LeaseBatch(self, request: pb.LeaseBatchRequest, context: _Context) -> AsyncIterator[Any]:
        """Wait for a full batch, lease it, stream it: a head with the first bytes of the joined frames, then chunks."""
        store_requests.check_next_batch(request, head=self._store.ledger.head)
        self._batch_size = request.batch_size
        batch, waited_s = await self._when_ready(request, self._store.lease)
        if batch is None:
            yield pb.LeaseBatchResponse()
            return
        joined = b"".join(batch.frames)
        yield pb.LeaseBatchResponse(
            batch_id=batch.batch_id,
            frame_sizes=[len(frame) for frame in batch.frames],
            trajectory_ids=batch.trajectory_ids,
            ages_s=batch.ages_s,
            waited_s=waited_s,
            chunk=joined[:FIRST_CHUNK_BYTES],
        )
        for chunk in _later_chunks(joined):
            # Its learner reads on, and does not know the lease before it has the whole.
            self._store.renew((batch.batch_id,), learner_id=request.learner_id)
            yield chunk

    async def ReadUpdate(self, request: pb.ReadUpdateRequest, context: _Context) -> AsyncIterator[Any]:
        """Stream the batch of an update that the ledger has, as a lease would."""
        check_version(request.version, "the update")
        made = self._store.read_update(version_from_proto(request.version))
        if made is None:
            yield pb.ReadUpdateResponse()
            return
        joined = b"".join(made.frames)
        yield pb.ReadUpdateResponse(
            version=version_to_proto(made.version),
            frame_sizes=[len(frame) for frame in made.frames],
            trajectory_ids=made.trajectory_ids,
            lags=made.lags,
            chunk=joined[:FIRST_CHUNK_BYTES],
        )
        for chunk in _later_chunks(joined):
            yield chunk

    async def SampleBatch(self, request: pb.SampleBatchRequest, context: _Context) -> AsyncIterator[Any]:
        """Wait until units may be drawn and stream them: a head with the frame's first bytes, then chunks."""
        replay = self._store.replay
        if replay is None:
            raise _no_replay()
        store_requests.check_next_batch(request, head=self._store.ledger.head)
        batch, waited_s = await self._when_ready(request, replay.sample)
        if batch is None:
            yield pb.SampleBatchResponse()
            return
        self._store.sampled.notify()
        yield pb.SampleBatchResponse(
            frame_size=len(batch.frame), chunk=batch.frame[:FIRST_CHUNK_BYTES], waited_s=waited_s
        )
        for chunk in _later_chunks(batch.frame):
            self._store.renew((batch.batch_id,), learner_id=request.learner_id)
            yield chunk

    async def _when_ready(
        self, request: pb.LeaseBatchRequest | pb.SampleBatchRequest, take: _TakesBatch[BatchT]
    ) -> tuple[BatchT | None, float]:
        """What ``take`` gives, tried after each change until the request's wait is over, and how long that was."""
        asked_at_s, version = self._clock.monotonic_s(), version_from_proto(request.version)
        asked = StalenessLimits(max_lag=request.max_lag, max_age_s=request.max_age_s)
        deadline_s = self._deadline_s(request.max_wait_s)
        while True:
            arrived = self._store.arrived.listen()
            # What a learner trained without a commit is available again once its lease has ended: in another batch for
            # the same learner it would be trained twice.
            is_held = not self._store.renew(request.held_batch_ids, learner_id=request.learner_id)
            batch = (
                take(
                    version,
                    batch_size=request.batch_size,
                    limits=tighter(asked, self._budget()),
                    learner_id=request.learner_id,
                    now_s=self._clock.now_s(),
                )
                if is_held
                else None
            )
            if batch is not None or not await self._changed(arrived, deadline_s):
                return batch, self._clock.monotonic_s() - asked_at_s

    async def RenewLeases(self, request: pb.RenewLeasesRequest, context: _Context) -> pb.RenewLeasesResponse:
        """Hear that a learner is alive."""
        store_requests.check_held(request.batch_ids, learner_id=request.learner_id)
        lost = self._store.renew(request.batch_ids, learner_id=request.learner_id)
        return pb.RenewLeasesResponse(lost_batch_ids=lost, lease_timeout_s=self._store.lease_timeout_s)

    async def CommitBatch(self, request: pb.CommitBatchRequest, context: _Context) -> pb.CommitBatchResponse:
        """Record a gradient."""
        store_requests.check_commit(request, head=self._store.ledger.head)
        if request.HasField("sampled"):
            self._commit_sampled(request)
            return pb.CommitBatchResponse()
        self._store.commit(
            request.batch_id,
            version=version_from_proto(request.version),
            consumptions=_consumptions(request.consumptions),
            now_s=self._clock.now_s(),
        )
        return pb.CommitBatchResponse()

    def _commit_sampled(self, request: pb.CommitBatchRequest) -> None:
        replay = self._store.replay
        if replay is None:
            raise _no_replay()
        sampled = request.sampled
        if len(sampled.ids) % 8 or len(sampled.priorities) % 4:
            raise RecordError("A commit's ids or priorities are cut short")
        replay.commit(
            request.batch_id,
            version=version_from_proto(request.version),
            sampled=SampledCommit(decode_units(sampled.ids), sampled.max_lag),
            priorities=np.frombuffer(sampled.priorities, "<f4") if sampled.priorities else None,
            consumptions=_consumptions(request.consumptions),
            now_s=self._clock.now_s(),
        )
        self._store.outcome_added.notify()
        self._store.arrived.notify()

    async def ReleaseBatch(
        self, request: pb.ReleaseBatchRequest, context: _Context
    ) -> pb.ReleaseBatchResponse:
        """Take a batch back."""
        store_requests.check_dropped(request.batch_id, request.dropped)
        self._store.release(request.batch_id, dropped=_dropped(request.dropped), now_s=self._clock.now_s())
        return pb.ReleaseBatchResponse()

    async def OpenLineage(self, request: pb.OpenLineageRequest, context: _Context) -> pb.OpenLineageResponse:
        """Start or restore a learner."""
        known = self._store.tree.lineages
        parent = LineageName(request.lineage.parent)
        newest = self._store.ledger.newest_step(parent) if parent in known else None
        ancestors = () if known else request.ancestors
        names = {request.lineage.name, *known, *(each.name for each in ancestors)}
        store_requests.check_opening(request, num_lineages=len(names), newest_of_parent=newest)
        if request.lineage.name not in known:  # a repeated call opens none
            self._opening_rate.take(now_s=self._clock.monotonic_s())
        revived = self._store.open_lineage(
            lineage_from_proto(request.lineage),
            learner_id=request.learner_id,
            consumed=[
                ConsumedBatch(
                    batch_id=batch.batch_id,
                    version=version_from_proto(batch.version),
                    consumptions=_consumptions(batch.consumptions),
                    units={TrajectoryId(item.trajectory_id): list(item.places) for item in batch.units},
                    max_lag=batch.max_lag,
                )
                for batch in request.consumed
            ],
            ancestors=[lineage_from_proto(ancestor) for ancestor in request.ancestors],
            now_s=self._clock.now_s(),
        )
        return pb.OpenLineageResponse(lineages=tree_to_proto(self._store.tree), revived=revived)

    async def MarkCheckpointed(
        self, request: pb.MarkCheckpointedRequest, context: _Context
    ) -> pb.MarkCheckpointedResponse:
        """Let payloads go that a checkpoint made superfluous."""
        newest = self._store.ledger.newest_step(LineageName(request.version.lineage))
        store_requests.check_checkpointed(request.version, newest=newest)
        self._store.mark_checkpointed(version_from_proto(request.version))
        return pb.MarkCheckpointedResponse()

    async def WatchOutcomes(
        self, request: pb.WatchOutcomesRequest, context: _Context
    ) -> pb.WatchOutcomesResponse:
        """Wait for outcomes after a cursor."""
        store_requests.check_watch(request)
        deadline_s = self._deadline_s(request.max_wait_s)
        while True:
            added = self._store.outcome_added.listen()
            outcomes, cursor = self._store.outcomes(request.cursor, limit=request.limit)
            if not outcomes and cursor != request.cursor:
                break
            if outcomes:
                if not _may_linger(outcomes, limit=request.limit):
                    break
                deadline_s = min(deadline_s, self._clock.monotonic_s() + self._linger_s())
            if not await self._changed(added, deadline_s):
                break
        return pb.WatchOutcomesResponse(
            outcomes=[_outcome(outcome) for outcome in outcomes], next_cursor=cursor
        )

    async def DropUnarrived(
        self, request: pb.DropUnarrivedRequest, context: _Context
    ) -> pb.DropUnarrivedResponse:
        """Drop trajectories that no actor will finish."""
        store_requests.check_dropped(None, request.dropped)
        dropped = _dropped(request.dropped)
        self._store.admission.check_held([item.trajectory_id for item in dropped], request.proof)
        num_dropped = self._store.drop_unarrived(dropped, now_s=self._clock.now_s())
        return pb.DropUnarrivedResponse(dropped=num_dropped)

    async def GetLedger(self, request: pb.GetLedgerRequest, context: _Context) -> pb.GetLedgerResponse:
        """The counts."""
        return self._ledger(self._store.totals())

    async def ReadLedger(
        self, request: pb.ReadLedgerRequest, context: _Context
    ) -> AsyncIterator[pb.ReadLedgerResponse]:
        """One moment of the file, read beside the writer."""
        if request.HasField("at"):
            check_version(request.at, "The version of the learner's total")
        at = version_from_proto(request.at) if request.HasField("at") else None
        async for part in iterate_in_thread(partial(moment, self._store.ledger_path, at=at)):
            if isinstance(part, LedgerTotals):
                yield pb.ReadLedgerResponse(totals=self._ledger(part))
            else:
                yield pb.ReadLedgerResponse(trajectory_ids=part)

    async def VerifyLedger(
        self, request: pb.VerifyLedgerRequest, context: _Context
    ) -> pb.VerifyLedgerResponse:
        """One moment of the file against its hash chain, read beside the writer; one verification at a time."""
        found = await self._verifying.run(partial(verify, self._store.ledger_path, head=request.head))
        return pb.VerifyLedgerResponse(
            num_entries=found.num_entries,
            num_rows=found.num_rows,
            num_payloads=found.num_payloads,
            head=found.head,
            findings=[pb.LedgerFinding(**msgspec.structs.asdict(each)) for each in found.findings],
            num_findings=found.num_findings,
            num_folded=found.num_folded,
        )

    def _ledger(self, totals: LedgerTotals) -> pb.GetLedgerResponse:
        head = self._store.ledger.head
        return pb.GetLedgerResponse(
            available=totals.available,
            leased=totals.leased,
            trained=totals.trained,
            dropped=dict[str, int](totals.dropped.items()),
            duplicates=totals.duplicates,
            quarantined=totals.quarantined,
            trained_twice=totals.trained_twice,
            max_lag_trained=totals.max_lag_trained,
            trained_by_lag=totals.trained_by_lag,
            head=version_to_proto(head) if head is not None else None,
            revived=totals.revived,
            replay=None
            if totals.replay is None
            else pb.ReplayTotals(**msgspec.structs.asdict(totals.replay)),
            budgets=pb.BudgetTotals(**msgspec.structs.asdict(totals.budgets)),
        )

    async def GetTrajectory(
        self, request: pb.GetTrajectoryRequest, context: _Context
    ) -> pb.GetTrajectoryResponse:
        """One row."""
        check_name(request.trajectory_id, "The id of a trajectory")
        status = self._store.trajectory(request.trajectory_id)
        return pb.GetTrajectoryResponse(
            envelope=envelope_to_proto(status.trajectory),
            state=status.state,
            reason=status.reason,
            detail=status.detail,
            trained_at=version_to_proto(status.trained_at) if status.trained_at is not None else None,
            stale_by_versions=status.stale_by_versions,
            span=status.span,
            age_s=status.age_s,
            stages=[stage_to_proto(stage) for stage in status.stages],
            uses=status.uses,
        )

    async def UploadPayload(
        self, request_iterator: AsyncIterator[pb.UploadPayloadRequest | memoryview], context: _Context
    ) -> pb.UploadPayloadResponse:
        """Keep a frame that is too large for a message, until its message comes."""
        requests = _without_silence(request_iterator)
        first = await anext(requests, None)
        if not isinstance(first, pb.UploadPayloadRequest) or not first.HasField("reference"):
            raise RecordError("An upload does not start with its reference")
        upload = self._store.uploads.begin(reference_from_proto(first.reference))
        if upload is None:
            return pb.UploadPayloadResponse()
        try:
            upload.write(first.chunk)
            async for message in requests:
                upload.write(message if isinstance(message, memoryview) else message.chunk)
            upload.finish()
        finally:
            upload.abandon()
        return pb.UploadPayloadResponse()

    def _linger_s(self) -> float:
        is_behind = 0 < self._batch_size <= self._store.ledger.pool.num_whole
        return ACCEPTED_LINGER_BEHIND_S if is_behind else ACCEPTED_LINGER_S

    def _deadline_s(self, max_wait_s: float) -> float:
        return self._clock.monotonic_s() + min(max(max_wait_s, 0.0), WAIT_S_MAX)

    async def _changed(self, event: asyncio.Event, deadline_s: float) -> bool:
        """Whether to check again; False once the time is up or the service drains."""
        if self._draining:
            return False
        return (
            await is_set_within(event, timeout_s=deadline_s - self._clock.monotonic_s())
            and not self._draining
        )


async def _without_silence(
    requests: AsyncIterator[pb.UploadPayloadRequest | memoryview],
) -> AsyncIterator[pb.UploadPayloadRequest | memoryview]:
    """The messages of an upload, which ends when none came for ``UPLOAD_SILENCE_S``."""
    while True:
        try:
            async with asyncio.timeout(UPLOAD_SILENCE_S):
                message = await anext(requests, None)
        except TimeoutError as error:
            raise UnavailableError(
                f"An upload was silent for {UPLOAD_SILENCE_S:g} s", fix="upload the payload again"
            ) from error
        if message is None:
            return
        yield message


def _later_chunks(data: bytes) -> Iterator[memoryview]:
    """What follows the first chunk of a streamed answer."""
    view = memoryview(data)
    for start in range(FIRST_CHUNK_BYTES, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def _may_linger(outcomes: Sequence[Outcome], *, limit: int) -> bool:
    """Whether an answer may wait a moment for company: nothing in it frees budget, and it is not full."""
    return len(outcomes) < limit and all(outcome.state == "accepted" for outcome in outcomes)


def _no_replay() -> RecordError:
    return RecordError(
        "This store does not replay", fix="set trajectory_store.replay.unit, or train on whole trajectories"
    )


def _consumptions(items: Sequence[pb.Consumption]) -> list[Consumption]:
    return [
        Consumption(
            TrajectoryId(item.trajectory_id),
            Fresh(lag=item.stale_by_versions, span=item.span, age_s=item.age_s),
        )
        for item in items
    ]


def _dropped(items: Sequence[pb.DroppedTrajectory]) -> list[Dropped]:
    return [
        Dropped(TrajectoryId(item.trajectory_id), _reason(item.reason), item.detail[:DETAIL_CHARS_MAX])
        for item in items
    ]


def _reason(text: str) -> DropReason:
    """As it came; the ledger refuses what is no reason."""
    return text  # pyright: ignore[reportReturnType]  # checked where it is written


def _outcome(outcome: Outcome) -> pb.Outcome:
    return pb.Outcome(
        trajectory_id=outcome.trajectory_id,
        state=outcome.state,
        reason=outcome.reason,
        curriculum_bin=outcome.curriculum_bin,
        reward=outcome.reward,
        length_tokens=outcome.length_tokens,
        trained_at=version_to_proto(outcome.trained_at) if outcome.trained_at is not None else None,
    )
