"""Client of the lifecycle calls of every service."""

import grpc

from tidegate.v1 import lifecycle_service_pb2 as pb
from tidegate.v1.lifecycle_service_pb2_grpc import LifecycleServiceStub
from tidegate.wire.clients.remote import DEADLINE_S, remote_errors
from tidegate.wire.stats import ServiceStats


class LifecycleClient:
    """Typed calls to the lifecycle of any service."""

    def __init__(self, channel: grpc.aio.Channel, *, service: str) -> None:
        """``channel``: shared; its owner closes it."""
        self._stub = LifecycleServiceStub(channel)
        self._service = service

    async def stats(self, *, now_s: float) -> ServiceStats:
        """The counters and gauges that the service also publishes twice a second."""
        with remote_errors(self._service):
            response = await self._stub.GetStats(pb.GetStatsRequest(), timeout=DEADLINE_S)
        return ServiceStats(
            service=response.service,
            instance=response.instance,
            state=response.state,
            at_s=now_s,
            started_at_s=response.started_at_s,
            values=dict(response.values),
            labels=dict(response.labels),
        )

    async def drain(self, *, reason: str) -> None:
        """Ask the service to drain and stop, as SIGTERM does."""
        with remote_errors(self._service):
            await self._stub.Drain(pb.DrainRequest(reason=reason), timeout=DEADLINE_S)
