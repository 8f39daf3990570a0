"""What a store says of a learner's instances, without its ledger: who is heard, and who is behind, is the test's."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.core.errors import UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.runtime.rpc import Registration
from tidegate.trajectory_store.learner_turn import LearnerTurn
from tidegate.v1 import learner_turn_service_pb2 as pb
from tidegate.v1.learner_turn_service_pb2_grpc import add_LearnerTurnServiceServicer_to_server
from tidegate.wire.convert import version_from_proto


@dataclass
class FakeTurns:
    """``unheard``: addresses of instances whose calls do not arrive."""

    turn: LearnerTurn = field(default_factory=lambda: LearnerTurn(begun=False))
    unheard: set[str] = field(default_factory=set[str])
    is_behind: Callable[[PolicyVersion | None], bool] = lambda _checkpoint: False
    num_behind: int = 0

    def registration(self) -> Registration:
        return Registration(
            add=add_LearnerTurnServiceServicer_to_server,
            servicer=self,
            name="tidegate.v1.LearnerTurnService",
        )

    def _check_heard(self, instance: str) -> None:
        if any(instance.endswith(address) for address in self.unheard):
            raise UnavailableError("the network is cut")

    async def KeepTurn(self, request: pb.KeepTurnRequest, context: Any) -> pb.KeepTurnResponse:
        self._check_heard(request.instance)
        known = version_from_proto(request.checkpoint) if request.HasField("checkpoint") else None
        behind = not request.works and self.is_behind(known)
        self.num_behind += behind
        has_turn = self.turn.keep(
            request.instance, works=request.works, is_behind=behind, now_s=time.monotonic()
        )
        return pb.KeepTurnResponse(has_turn=has_turn, is_behind=behind)

    async def EndTurn(self, request: pb.EndTurnRequest, context: Any) -> pb.EndTurnResponse:
        self._check_heard(request.instance)
        self.turn.end(request.instance)
        return pb.EndTurnResponse()
