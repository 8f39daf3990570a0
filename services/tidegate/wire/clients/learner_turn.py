"""Client of the trajectory store, as which of a learner's instances works."""

import grpc
import msgspec

from tidegate.core.ids import PolicyVersion
from tidegate.v1 import learner_turn_service_pb2 as pb
from tidegate.v1.learner_turn_service_pb2_grpc import LearnerTurnServiceStub
from tidegate.wire.clients.remote import remote_errors
from tidegate.wire.convert import version_to_proto

SERVICE = "trajectory_store"
# Shorter than the silence after which an instance is taken for lost: a lost answer costs one question.
DEADLINE_S = 2.0


class TurnAnswer(msgspec.Struct, frozen=True):
    """Whether the instance has its turn, and whether it waits because its checkpoint is too old."""

    has_turn: bool
    is_behind: bool


class LearnerTurnClient:
    """Typed calls of one instance."""

    def __init__(self, channel: grpc.aio.Channel, *, instance: str) -> None:
        """``channel``: shared; its owner closes it. ``instance``: the same name after a restart."""
        self._stub = LearnerTurnServiceStub(channel)
        self._instance = instance

    async def keep(self) -> TurnAnswer:
        """Ask as the instance that works."""
        return await self._ask(pb.KeepTurnRequest(instance=self._instance, works=True))

    async def wait(self, *, checkpoint: PolicyVersion | None) -> TurnAnswer:
        """Ask as one that stands by, with the newest checkpoint that it has."""
        return await self._ask(
            pb.KeepTurnRequest(
                instance=self._instance,
                checkpoint=None if checkpoint is None else version_to_proto(checkpoint),
            )
        )

    async def end(self) -> None:
        """Let another instance follow at once."""
        with remote_errors(SERVICE):
            await self._stub.EndTurn(pb.EndTurnRequest(instance=self._instance), timeout=DEADLINE_S)

    async def _ask(self, request: pb.KeepTurnRequest) -> TurnAnswer:
        with remote_errors(SERVICE):
            response = await self._stub.KeepTurn(request, timeout=DEADLINE_S)
        return TurnAnswer(response.has_turn, response.is_behind)
