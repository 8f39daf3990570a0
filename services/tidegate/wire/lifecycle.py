"""Messages of the lifecycle service, for the one servicer below the packages of the services."""

from tidegate.v1 import lifecycle_service_pb2 as pb
from tidegate.v1.lifecycle_service_pb2_grpc import add_LifecycleServiceServicer_to_server
from tidegate.wire.stats import ServiceStats

LIFECYCLE_NAME = "tidegate.v1.LifecycleService"
add_lifecycle = add_LifecycleServiceServicer_to_server


def stats_response(stats: ServiceStats) -> pb.GetStatsResponse:
    """A snapshot of the board as a response."""
    return pb.GetStatsResponse(
        service=stats.service,
        instance=stats.instance,
        state=stats.state,
        started_at_s=stats.started_at_s,
        values=stats.values,
        labels=stats.labels,
    )


def drain_response() -> pb.DrainResponse:
    """The empty answer to a drain."""
    return pb.DrainResponse()
