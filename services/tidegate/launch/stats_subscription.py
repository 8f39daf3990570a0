"""Subscribes to the statistics and events of a platform, for its supervisor and for ``tidegate status``."""

from types import TracebackType

from tidegate.core.errors import RecordError, UnavailableError
from tidegate.core.ids import RunId
from tidegate.launch.board import Board
from tidegate.launch.broker import BrokerEndpoint
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.run_event_log import RunEventLog
from tidegate.runtime.stats_reports import follow_stats, publish_stats
from tidegate.wire.stats import ServiceStats
from tidegate.wire.subjects import Topology

CONNECT_TIMEOUT_S = 5.0


class StatsSubscription:
    """Subscriptions that fill a board and a log; they survive a restart of the broker."""

    def __init__(
        self, broker: BrokerEndpoint, run_id: RunId, board: Board, *, events: RunEventLog | None = None
    ) -> None:
        """``async with`` connects; ``events`` is for the one process that writes them to a file."""
        self._events = events
        self._broker = broker
        self._topology = Topology(run_id)
        self._board = board
        self._bus: Bus | None = None

    async def __aenter__(self) -> "StatsSubscription":
        """Connect and subscribe.

        Raises:
            UnavailableError: the broker does not answer.
        """
        try:
            self._bus = await Bus.connect(
                self._broker.url,
                user=self._broker.user,
                password=self._broker.password,
                name="tidegate-cli",
                topology=self._topology,
                clock=SystemClock(),
                timeout_s=CONNECT_TIMEOUT_S,
            )
        except UnavailableError as error:
            raise UnavailableError(error.what, why=error.why, fix="is the platform still running?") from error
        await follow_stats(self._bus, self._topology, self._board.put, on_refused=_leave_out)
        if self._events is not None:
            await self._bus.subscribe(self._topology.event("*"), self._keep)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        if self._bus is not None:
            await self._bus.close()

    @property
    def connected(self) -> bool:
        """Whether the broker answers right now."""
        return self._bus is not None and self._bus.connected

    async def publish(self, stats: ServiceStats) -> None:
        """Publish the supervisor's statistics; lost while the broker is away."""
        if self._bus is not None:
            await publish_stats(self._bus, self._topology, stats)

    async def _keep(self, data: bytes, _headers: dict[str, str]) -> None:
        if self._events is not None:
            self._events.append(data)


def _leave_out(_error: RecordError) -> None:
    """Its sender has another version; its row stays empty."""
