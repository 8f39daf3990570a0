"""Tells a learner's instances over gRPC which of them works."""

from typing import Any

from grpc import aio

from tidegate.runtime.clock import Clock
from tidegate.runtime.replication.replica import CaughtUp
from tidegate.runtime.rpc import Registration
from tidegate.trajectory_store.kept_updates import surviving
from tidegate.trajectory_store.learner_turn import LearnerTurn, is_behind
from tidegate.trajectory_store.restore import checkpoint_of
from tidegate.trajectory_store.store import Store
from tidegate.v1 import learner_turn_service_pb2 as pb
from tidegate.v1.learner_turn_service_pb2_grpc import (
    LearnerTurnServiceServicer,
    add_LearnerTurnServiceServicer_to_server,
)
from tidegate.wire.bounds import check_name, check_version
from tidegate.wire.convert import version_from_proto

NAME = "tidegate.v1.LearnerTurnService"

_Context = aio.ServicerContext[Any, Any]


class LearnerTurnServicer(LearnerTurnServiceServicer):
    """Knows one instance, the one that works."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._turn = LearnerTurn(begun=bool(store.tree.lineages))

    def registration(self, before_answer: CaughtUp) -> Registration:
        """How the store's server adds it. ``before_answer``: as of the store's own service."""
        return Registration(
            add=add_LearnerTurnServiceServicer_to_server,
            servicer=self,
            name=NAME,
            before_answer=before_answer,
        )

    async def KeepTurn(self, request: pb.KeepTurnRequest, context: _Context) -> pb.KeepTurnResponse:
        """Whether it is the turn of the instance that asks."""
        check_name(request.instance, "The name of the instance")
        behind = not request.works and self._is_behind(request)
        has_turn = self._turn.keep(
            request.instance, works=request.works, is_behind=behind, now_s=self._clock.monotonic_s()
        )
        return pb.KeepTurnResponse(has_turn=has_turn, is_behind=behind)

    async def EndTurn(self, request: pb.EndTurnRequest, context: _Context) -> pb.EndTurnResponse:
        """Hear that an instance ends."""
        check_name(request.instance, "The name of the instance")
        self._turn.end(request.instance)
        return pb.EndTurnResponse()

    def _is_behind(self, request: pb.KeepTurnRequest) -> bool:
        needed = checkpoint_of(self._store.ledger.connection)
        if not request.HasField("checkpoint"):
            return is_behind(None, needed=needed, is_on_branch=True)
        check_version(request.checkpoint, "The version of the checkpoint")
        checkpoint = version_from_proto(request.checkpoint)
        return is_behind(
            checkpoint,
            needed=needed,
            is_on_branch=surviving(checkpoint, self._store.tree) is not None,
        )
