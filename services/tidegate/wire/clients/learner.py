"""Client of the learner."""

import grpc
import msgspec

from tidegate.core.audit import LearnerTotals
from tidegate.core.ids import PolicyVersion
from tidegate.v1 import learner_service_pb2 as pb
from tidegate.v1.learner_service_pb2_grpc import LearnerServiceStub
from tidegate.wire.checkpoints import READ_CHECKPOINT_DEADLINE_S, checkpoint_request
from tidegate.wire.clients.file_stream import FileStream
from tidegate.wire.clients.remote import DEADLINE_S, remote_errors
from tidegate.wire.convert import version_from_proto, version_to_proto
from tidegate.wire.snapshots import FileHeader, file_part_from_proto

SERVICE = "learner"
# What waits for the end of an update, and reads or writes a checkpoint: minutes each, of a large model. Given up sooner
# a last checkpoint would be asked for again, and written again, for ever.
STEP_DEADLINE_S = 3600.0


class LearnerReport(msgspec.Struct, frozen=True):
    """The progress of training; ``drawn``: the learner's side of the audit of replay.

    ``kept``: the versions that the kept checkpoints hold, oldest first.
    """

    version: PolicyVersion
    consumed_trajectories: int
    consumed_steps: int
    metrics: dict[str, float]
    checkpointed: PolicyVersion | None
    drawn: LearnerTotals
    kept: list[PolicyVersion]


class AcceptedRollback(msgspec.Struct, frozen=True):
    """A rollback that the learner carries out now. ``head``: the newest version when it was accepted."""

    head: PolicyVersion
    target: PolicyVersion


class LearnerClient:
    """Typed calls to the learner."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """``channel``: shared; its owner closes it."""
        self._stub = LearnerServiceStub(channel)

    async def progress(self) -> LearnerReport:
        """The version, the trajectories consumed, and the newest metrics."""
        with remote_errors(SERVICE):
            response = await self._stub.GetProgress(pb.GetProgressRequest(), timeout=DEADLINE_S)
        return LearnerReport(
            version=version_from_proto(response.version),
            consumed_trajectories=response.consumed_trajectories,
            consumed_steps=response.consumed_steps,
            metrics=dict(response.metrics),
            checkpointed=version_from_proto(response.checkpointed)
            if response.HasField("checkpointed")
            else None,
            drawn=LearnerTotals(version_from_proto(response.acknowledged), response.sampled_units),
            kept=[version_from_proto(version) for version in response.kept],
        )

    async def checkpoint(self) -> PolicyVersion:
        """Write a checkpoint at the next step boundary; returns its version."""
        with remote_errors(SERVICE):
            response = await self._stub.Checkpoint(pb.CheckpointRequest(), timeout=STEP_DEADLINE_S)
        return version_from_proto(response.version)

    async def rollback(self, target: PolicyVersion, *, reason: str = "", by: str = "") -> AcceptedRollback:
        """Go back to the version of a kept checkpoint at the next step boundary; returns once that is durable."""
        request = pb.RollbackRequest(target=version_to_proto(target), reason=reason, by=by)
        with remote_errors(SERVICE):
            response = await self._stub.Rollback(request, timeout=STEP_DEADLINE_S)
        return AcceptedRollback(
            head=version_from_proto(response.head), target=version_from_proto(response.target)
        )

    async def complete(self, *, reason: str) -> None:
        """End the learner of a complete run: it drains, and its Job completes. Returns at once."""
        with remote_errors(SERVICE):
            await self._stub.Complete(pb.CompleteRequest(reason=reason), timeout=DEADLINE_S)

    def read_checkpoint(self, *, known: PolicyVersion | None) -> FileStream[FileHeader | bytes]:
        """The files of the newest checkpoint, none if it holds ``known``; close it.

        Raises:
            TidegateError: the learner refused.
        """
        with remote_errors(SERVICE):
            call = self._stub.ReadCheckpoint(checkpoint_request(known), timeout=READ_CHECKPOINT_DEADLINE_S)
        return FileStream(call, service=SERVICE, decode=file_part_from_proto)
