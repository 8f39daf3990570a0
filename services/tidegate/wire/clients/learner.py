"""Client of the learner."""

import grpc
import msgspec

from tidegate.core.audit import LearnerTotals
from tidegate.core.ids import PolicyVersion
from tidegate.v1 import learner_service_pb2 as pb
from tidegate.v1.learner_service_pb2_grpc import LearnerServiceStub
from tidegate.wire.clients.remote import DEADLINE_S, remote_errors
from tidegate.wire.convert import version_from_proto

SERVICE = "learner"


class LearnerReport(msgspec.Struct, frozen=True):
    """The progress of training; ``drawn``: the learner's side of the audit of replay."""

    version: PolicyVersion
    consumed_trajectories: int
    consumed_steps: int
    metrics: dict[str, float]
    checkpointed: PolicyVersion | None
    drawn: LearnerTotals


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
        )

    async def checkpoint(self) -> PolicyVersion:
        """Write a checkpoint at the next step boundary; returns its version."""
        with remote_errors(SERVICE):
            response = await self._stub.Checkpoint(pb.CheckpointRequest(), timeout=6 * DEADLINE_S)
        return version_from_proto(response.version)
