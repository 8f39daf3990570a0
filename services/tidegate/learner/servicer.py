"""The learner over gRPC."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from grpc import aio

from tidegate.learner.loops import Learner
from tidegate.learner.snapshot import add_unknown_checkpoint
from tidegate.runtime.rpc import Registration
from tidegate.runtime.snapshots.files import SnapshotFiles
from tidegate.runtime.snapshots.servicer import FileCalls
from tidegate.v1 import learner_service_pb2 as pb
from tidegate.v1.learner_service_pb2_grpc import LearnerServiceServicer, add_LearnerServiceServicer_to_server
from tidegate.wire.bounds import DETAIL_CHARS_MAX, check_name, check_version
from tidegate.wire.checkpoints import (
    READ_CHECKPOINT_DEADLINE_S,
    READ_CHECKPOINT_METHOD,
    checkpoint_file_to_proto,
    serialize_checkpoint_response,
)
from tidegate.wire.convert import version_from_proto, version_to_proto

SERVICE_NAME = "tidegate.v1.LearnerService"

_Context = aio.ServicerContext[Any, Any]


class LearnerServicer(LearnerServiceServicer):
    """Serves progress; writes and sends checkpoints, rolls back and ends on request."""

    def __init__(self, learner: Learner, *, checkpoints: Path) -> None:
        """``checkpoints``: their folder, in that of this service in the run's."""
        self._learner = learner
        self._checkpoints = checkpoints
        own = checkpoints.parent
        self._calls = FileCalls(
            own.parent, own, reader="learner that stands by", deadline_s=READ_CHECKPOINT_DEADLINE_S
        )

    def registration(self) -> Registration:
        """How the service's gRPC server registers this servicer."""
        return Registration(
            add=add_LearnerServiceServicer_to_server,
            servicer=self,
            name=SERVICE_NAME,
            raw_responses={READ_CHECKPOINT_METHOD: serialize_checkpoint_response},
        )

    async def GetProgress(self, request: pb.GetProgressRequest, context: _Context) -> pb.GetProgressResponse:
        """The version, the counts of consumed data, and the newest metrics."""
        progress, sampled = self._learner.progress, self._learner.sampled_units()
        response = pb.GetProgressResponse(
            version=version_to_proto(progress.version),
            consumed_trajectories=progress.consumed_trajectories,
            consumed_steps=progress.consumed_steps,
            metrics=self._learner.metrics(),
            sampled_units=sampled.sampled,
            acknowledged=version_to_proto(sampled.version),
            kept=[version_to_proto(version) for version in self._learner.kept()],
        )
        if self._learner.checkpointed is not None:
            response.checkpointed.CopyFrom(version_to_proto(self._learner.checkpointed))
        return response

    async def Checkpoint(self, request: pb.CheckpointRequest, context: _Context) -> pb.CheckpointResponse:
        """Write a checkpoint at the next step boundary."""
        return pb.CheckpointResponse(version=version_to_proto(await self._learner.checkpoint()))

    async def Rollback(self, request: pb.RollbackRequest, context: _Context) -> pb.RollbackResponse:
        """Go back to the version of a kept checkpoint at the next step boundary."""
        check_version(request.target, "The version to go back to")
        check_name(request.reason, "The reason", chars_max=DETAIL_CHARS_MAX)
        check_name(request.by, "The name of who asks")
        rollback = await self._learner.rollback(
            version_from_proto(request.target), reason=request.reason, by=request.by
        )
        return pb.RollbackResponse(
            head=version_to_proto(rollback.head), target=version_to_proto(rollback.target)
        )

    async def Complete(self, request: pb.CompleteRequest, context: _Context) -> pb.CompleteResponse:
        """Drain for good."""
        check_name(request.reason, "The reason", chars_max=DETAIL_CHARS_MAX)
        self._learner.complete(reason=request.reason)
        return pb.CompleteResponse()

    async def ReadCheckpoint(
        self, request: pb.ReadCheckpointRequest, context: _Context
    ) -> AsyncIterator[Any]:
        """Each file of the newest checkpoint and its bytes, unless the caller has that one."""
        known = None
        if request.HasField("known"):
            check_version(request.known, "The version of the caller's checkpoint")
            known = version_from_proto(request.known)
        self._learner.note_standby(known)

        def add(files: SnapshotFiles) -> tuple[()]:
            add_unknown_checkpoint(files, checkpoints=self._checkpoints, known=known)
            return ()

        async for message in self._calls.answer(context, add, header_of=checkpoint_file_to_proto):
            yield message
