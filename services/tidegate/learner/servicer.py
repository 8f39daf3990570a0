"""The learner over gRPC."""

from typing import Any

from grpc import aio

from tidegate.learner.loops import Learner
from tidegate.runtime.rpc import Registration
from tidegate.v1 import learner_service_pb2 as pb
from tidegate.v1.learner_service_pb2_grpc import LearnerServiceServicer, add_LearnerServiceServicer_to_server
from tidegate.wire.bounds import DETAIL_CHARS_MAX, check_name, check_version
from tidegate.wire.convert import version_from_proto, version_to_proto

SERVICE_NAME = "tidegate.v1.LearnerService"

_Context = aio.ServicerContext[Any, Any]


class LearnerServicer(LearnerServiceServicer):
    """Serves progress; writes checkpoints, rolls back and ends on request."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def registration(self) -> Registration:
        """How the service's gRPC server registers this servicer."""
        return Registration(add=add_LearnerServiceServicer_to_server, servicer=self, name=SERVICE_NAME)

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
