"""The actor's gRPC service: reports its policy and load."""

from typing import Any

from grpc.aio import ServicerContext

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.in_flight import InFlightTasks
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.runtime.rpc import Registration
from tidegate.v1 import actor_service_pb2 as pb
from tidegate.v1.actor_service_pb2_grpc import ActorServiceServicer, add_ActorServiceServicer_to_server
from tidegate.wire.convert import version_to_proto


class ActorServicer(ActorServiceServicer):
    """Reads the state of the loops; read-only."""

    def __init__(
        self,
        actor_id: str,
        in_flight: InFlightTasks,
        served_policy: ServedPolicy,
        control: EngineControl,
        *,
        slots: int,
    ) -> None:
        """``slots``: tasks that may run at once."""
        self._actor_id = actor_id
        self._in_flight = in_flight
        self._served_policy = served_policy
        self._control = control
        self._slots = slots

    async def GetServing(
        self, request: pb.GetServingRequest, context: ServicerContext[Any, Any]
    ) -> pb.GetServingResponse:
        """The version that generates now; none before the first policy arrived."""
        serving = self._control.serving or self._control.newest
        return pb.GetServingResponse(
            version=None if serving is None else version_to_proto(serving.version),
            actor_id=self._actor_id,
            slots=self._slots,
            busy_slots=len(self._in_flight.running),
            loaded_at_s=self._served_policy.loaded_at_s,
        )

    def registration(self) -> Registration:
        """The registration function of the service."""
        return Registration(add_ActorServiceServicer_to_server, self, "tidegate.v1.ActorService")
