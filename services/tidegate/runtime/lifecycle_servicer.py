"""The lifecycle calls of every service. The only module of this package that uses protobuf, through ``wire``."""

from tidegate.runtime.clock import Clock
from tidegate.runtime.drain import Drain
from tidegate.runtime.rpc import Registration
from tidegate.runtime.stats_board import StatsBoard
from tidegate.wire.lifecycle import LIFECYCLE_NAME, add_lifecycle, drain_response, stats_response


class LifecycleServicer:
    """Statistics on request, and drain on request."""

    def __init__(self, stats: StatsBoard, drain: Drain, clock: Clock) -> None:
        self._stats = stats
        self._drain = drain
        self._clock = clock

    def registration(self) -> Registration:
        """The servicer as the lifecycle adds it to every server."""
        return Registration(add=add_lifecycle, servicer=self, name=LIFECYCLE_NAME)

    async def GetStats(self, request: object, context: object) -> object:
        """The whole board."""
        return stats_response(self._stats.snapshot(at_s=self._clock.now_s()))

    async def Drain(self, request: object, context: object) -> object:
        """As SIGTERM would."""
        self._drain.request()
        return drain_response()
