"""A service as the lifecycle runs it: its spec, its context and its parts."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import structlog

from tidegate.core.errors import ConfigError
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import Clock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.live_settings import LiveSettings, run_file_limits
from tidegate.runtime.rpc import Registration
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry import Telemetry
from tidegate.wire.call_permissions import Role
from tidegate.wire.subjects import StreamSpec, Topology

Loop = Callable[[], Awaitable[None]]


class Channels:
    """One persistent channel to each peer, opened on first use."""

    def __init__(
        self,
        addresses: Mapping[str, list[str]],
        *,
        open_channel: Callable[[str], grpc.aio.Channel],
    ) -> None:
        """``addresses``: host:port of each instance, by service. ``open_channel``: sends the caller's credential."""
        self._addresses = addresses
        self._open = open_channel
        self._channels: dict[str, grpc.aio.Channel] = {}

    def get(self, service: str, index: int = 0) -> grpc.aio.Channel:
        """The channel to one instance of a service.

        Raises:
            ConfigError: the run has no such instance.
        """
        known = self._addresses.get(service, [])
        if index >= len(known):
            raise ConfigError(f"This run has no {service} number {index}", fix="name it under `addresses`")
        address = known[index]
        if address not in self._channels:
            self._channels[address] = self._open(address)
        return self._channels[address]

    async def close(self) -> None:
        """Close them all."""
        for channel in self._channels.values():
            await channel.close()


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The context that a service is built with: its identity, its settings and its connections.

    ``live``: the sections of the run file that may change while it runs; those of ``settings`` are the ones it started
    with.
    """

    service: str
    instance: str
    index: int
    settings: Settings
    topology: Topology
    data_dir: Path
    bus: Bus
    clock: Clock
    stats: StatsBoard
    telemetry: Telemetry
    drain: Drain
    log: structlog.stdlib.BoundLogger
    channels: Channels
    live: LiveSettings

    def channel(self, service: str, index: int = 0) -> grpc.aio.Channel:
        """The shared, reconnecting channel to another service."""
        return self.channels.get(service, index)


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """The parts of a service: loops that return once draining, servicers, and resources to close at the end."""

    loops: Mapping[str, Loop]
    servicers: list[Registration] = field(default_factory=list[Registration])
    close: Callable[[], Awaitable[None]] | None = None


# Builds a service that made something ready while it stood by.
Build = Callable[[], Awaitable[ServiceParts]]


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One service of the registry: its name, the type of its section, and its builder.

    ``instead``: the coroutine that this process runs in place of the service, None for the service itself. The ranks
    of a learner that only compute are started this way.

    ``turn``: where one instance of several works and the others stand by, a coroutine that returns once this one may
    work, or drains; it is built after that, by what the coroutine returns if that is not None. None for an instance
    that has no others.
    """

    name: Role
    config_type: type[Any]
    build: Callable[[ServiceContext, Any], Awaitable[ServiceParts]]
    instead: Callable[[Any, Settings], Coroutine[Any, Any, int] | None] = lambda _config, _settings: None
    turn: Callable[[ServiceContext, Any], Coroutine[Any, Any, Build | None] | None] = (
        lambda _context, _config: None
    )


def stream_specs(settings: Settings) -> tuple[StreamSpec, ...]:
    """The streams of a run: TASKS with room for twice the limit on running tasks, plus evaluations."""
    max_tasks = 2 * run_file_limits(settings, settings.staleness).max_running + 16
    return Topology(settings.run).streams(max_tasks=max_tasks, environment=settings.workload.label)
