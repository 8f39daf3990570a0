"""The lifecycle of every service: starting, ready, draining, stopped or failed.

Open the bus, build the room's parts, start gRPC, run the loops in one TaskGroup, report ready. SIGTERM: not ready,
stop pulling, finish within ``drain_timeout_s``, hand back the rest, stop gRPC, flush telemetry, exit 0. A loop that
fails drains the others and the process exits 1; whoever supervises it starts it again.
"""

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import structlog
import uvloop

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle_servicer import LifecycleServicer
from tidegate.runtime.rpc import Registration, RpcServer, open_channel
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry import Telemetry, open_telemetry
from tidegate.wire.stats import encode_stats
from tidegate.wire.subjects import Topology

# Services of which a run has several instances; their data folders are numbered.
REPLICATED = frozenset({"actor", "environment"})
# Allocations between two collections (Python's own 700 fall into the middle of a batch, all of which is alive), and how
# many young ones make an old one. What is in no cycle, which is nearly everything, is freed at once anyhow.
COLLECT_AFTER = (10_000, 10, 10)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Loop = Callable[[], Awaitable[None]]


class Channels:
    """One persistent channel to each peer, opened on first use."""

    def __init__(self, addresses: Mapping[str, list[str]]) -> None:
        """``addresses``: host:port of each instance, by service."""
        self._addresses = addresses
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
            self._channels[address] = open_channel(address)
        return self._channels[address]

    async def close(self) -> None:
        """Close them all."""
        for channel in self._channels.values():
            await channel.close()


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What a room gets to work with: identity, settings, and its ways to the world."""

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

    def channel(self, service: str, index: int = 0) -> grpc.aio.Channel:
        """The shared, reconnecting channel to another service."""
        return self.channels.get(service, index)


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """What a room gives the lifecycle: loops that return once draining, servicers, and what to close at the end."""

    loops: Mapping[str, Loop]
    servicers: list[Registration] = field(default_factory=list[Registration])
    close: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One service of the registry: its name, its section's type, and how it is built.

    ``instead``: what this process is to run in place of the service, as its environment says; None if it is the
    service. So the ranks of a learner that only compute are started like the one that is the learner.
    """

    name: str
    config_type: type[Any]
    build: Callable[[ServiceContext, Any], Awaitable[ServiceParts]]
    instead: Callable[[Any, Settings], Coroutine[Any, Any, int] | None] = lambda _config, _settings: None


def instance_name(service: str, index: int) -> str:
    """``actor-0`` for replicated services, the bare name for the others."""
    return f"{service}-{index}" if service in REPLICATED else service


def max_tasks(settings: Settings) -> int:
    """Bound of the TASKS stream in messages: twice what may be running, and room for evaluations."""
    return 2 * settings.max_running + 16


def run_service(spec: ServiceSpec, config: object, settings: Settings, *, index: int = 0) -> int:
    """Run one service until it is told to stop; returns the exit code."""
    instead = spec.instead(config, settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(instead or _Life(spec, config, settings, index).run())


class _Life:
    """One process' way through the lifecycle."""

    def __init__(self, spec: ServiceSpec, config: object, settings: Settings, index: int) -> None:
        self._spec = spec
        self._config = config
        self._settings = settings
        self._index = index
        self._instance = settings.instance or instance_name(spec.name, index)
        self._clock = SystemClock()
        self._drain = Drain()
        self._failed = False
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(self._instance)

    async def run(self) -> int:
        """Start, serve, drain, stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain.request)
        settings = self._settings
        topology = Topology(settings.run)
        stats = StatsBoard(service=self._spec.name, instance=self._instance, started_at_s=self._clock.now_s())
        data_dir = Path(settings.data_dir) / self._instance
        data_dir.mkdir(parents=True, exist_ok=True)
        telemetry = open_telemetry(
            settings.telemetry,
            service=self._spec.name,
            instance=self._instance,
            run=settings.run,
            board=stats,
        )
        bus = await Bus.connect(
            settings.broker_url,
            token=settings.broker_token,
            user=settings.broker_user,
            password=settings.broker_password,
            name=self._instance,
            topology=topology,
            clock=self._clock,
            timeout_s=settings.broker_wait_s,
        )
        context = ServiceContext(
            service=self._spec.name,
            instance=self._instance,
            index=self._index,
            settings=settings,
            topology=topology,
            data_dir=data_dir,
            bus=bus,
            clock=self._clock,
            stats=stats,
            telemetry=telemetry,
            drain=self._drain,
            log=self._log,
            channels=Channels(settings.addresses),
        )
        try:
            await bus.bootstrap(
                topology.streams(max_tasks=max_tasks(settings)), copies=settings.stream_copies
            )
            await self._serve(context)
        except TidegateError as error:
            self._failed = True
            self._log.error("service_failed", error=str(error))
        finally:
            await context.channels.close()
            await bus.close()
            telemetry.close()
        stats.state = "failed" if self._failed else "stopped"
        self._log.info("service_stopped", failed=self._failed)
        return 1 if self._failed else 0

    async def _serve(self, context: ServiceContext) -> None:
        parts = await self._spec.build(context, self._config)
        lifecycle = LifecycleServicer(context.stats, self._drain, self._clock)
        servicers = [*parts.servicers, lifecycle.registration()]
        server = RpcServer(servicers, meter=context.telemetry.served)
        address = self._settings.listen or self._settings.addresses[self._spec.name][self._index]
        try:
            await server.start(address)
            tasks = {name: asyncio.create_task(self._guard(name, loop)) for name, loop in parts.loops.items()}
            reporter = asyncio.create_task(self._report(context))
            # All that was built stays for good: collections from here on look at what a message leaves behind alone.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*COLLECT_AFTER)
            context.stats.state = "ready"
            await server.set_serving(serving=True)
            self._log.info("service_ready", address=address)
            await self._drain.wait()
            context.stats.state = "draining"
            await server.set_serving(serving=False)
            self._log.info("service_draining")
            _, late = await asyncio.wait(tasks.values(), timeout=self._settings.drain_timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            reporter.cancel()
            await self._publish_stats(context)
        finally:
            # Calls first: what they use stays open until the last of them was answered or refused.
            await server.stop(grace_s=1.0)
            if parts.close is not None:
                await parts.close()

    async def _guard(self, name: str, loop: Loop) -> None:
        """A loop that ends before draining, for whatever reason, stops the whole service: half a service lies."""
        try:
            await loop()
        except asyncio.CancelledError:
            self._log.warning("loop_cancelled", loop=name, why="it did not end within drain_timeout_s")
            raise
        except TidegateError as error:
            self._failed = True
            self._log.error("loop_failed", loop=name, error=str(error))
        except Exception:  # the last place that can say what happened before the process ends
            self._failed = True
            self._log.exception("loop_crashed", loop=name)
        else:
            if not self._drain.requested:
                self._failed = True
                self._log.error("loop_ended", loop=name)
        finally:
            self._drain.request()

    async def _report(self, context: ServiceContext) -> None:
        while True:
            await self._publish_stats(context)
            await asyncio.sleep(self._settings.telemetry.stats_period_s)

    async def _publish_stats(self, context: ServiceContext) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        context.stats.set("cpu_s_total", usage.ru_utime + usage.ru_stime)
        context.stats.set("rss_mb", resident_bytes() / 1e6)
        context.stats.set("broker_reconnects_total", context.bus.reconnects)
        context.stats.set("backpressure_total", context.bus.backpressure_total)
        snapshot = context.stats.snapshot(at_s=self._clock.now_s())
        await context.bus.publish_core(context.topology.stats(self._instance), encode_stats(snapshot))


def resident_bytes() -> int:
    """Resident memory of this process; its peak where the kernel has no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
