"""The lifecycle of every service: starting, ready, draining, stopped or failed.

Open the bus, wait for a turn where one instance of several works, build the service, start gRPC, run its loops, report
ready. On drain (SIGTERM): report not ready, let the
loops finish within ``drain_timeout_s``, cancel the late ones, stop gRPC, close the parts, flush, exit 0; or with a code
of its own where a complete run is the reason. A loop that fails drains the others and the process exits 1; its
supervisor restarts it. Settings that the service's parts refuse end it with exit code 2.

Everything of the process rather than the service is passed as ``ProcessPorts``: ``runtime.process`` opens the operating
system's, ``sim`` opens simulated ones, so that the same lifecycle runs under virtual time and seeded faults.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from tidegate.catalogue import process
from tidegate.core.errors import ConfigError, RecordError, TidegateError
from tidegate.runtime import exit_codes
from tidegate.runtime.bus import Bus
from tidegate.runtime.call_refusals import counting_refusals
from tidegate.runtime.clock import Clock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.instances import instance_name
from tidegate.runtime.lifecycle_servicer import LifecycleServicer
from tidegate.runtime.live_settings import LiveSections, LiveSettings, SectionsSource
from tidegate.runtime.rpc import CallMeter, Registration
from tidegate.runtime.service import (
    Build,
    Channels,
    Loop,
    ServiceContext,
    ServiceParts,
    ServiceSpec,
    stream_specs,
)
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.stats_reports import publish_stats
from tidegate.runtime.telemetry import Telemetry
from tidegate.wire.subjects import Topology

# Its statistics, as a loop of every service.
REPORT = "report"
# Time for calls in flight once the loops have ended.
CALLS_GRACE_S = 1.0


class ServiceServer(Protocol):
    """A gRPC server as the lifecycle uses it; ``runtime.rpc.RpcServer`` is the real one."""

    async def start(self, address: str) -> None:
        """Listen; not serving yet."""
        ...

    async def set_serving(self, *, serving: bool, stands_by: bool = False) -> None:
        """The answer of its health checks. ``stands_by``: it is healthy, and is not to be called."""
        ...

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new calls, give those in flight ``grace_s``, then end them."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessPorts:
    """What the lifecycle takes from the process that it runs in.

    ``drain`` is requested by SIGTERM. ``record_usage`` writes the process' CPU and memory to the board before each
    report. ``on_built`` is called once, when all loops were started and nothing is served yet. ``sections``: where
    changed sections of the run file are found; None where they do not change.
    """

    clock: Clock
    drain: Drain
    log: structlog.stdlib.BoundLogger
    channels: Channels
    open_telemetry: Callable[[StatsBoard], Telemetry]
    open_bus: Callable[[Topology], Awaitable[Bus]]
    open_server: Callable[[Sequence[Registration], CallMeter], ServiceServer]
    record_usage: Callable[[StatsBoard], None]
    on_built: Callable[[], None]
    sections: SectionsSource | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a service exits 1: ``error`` of its start or of a loop; None for a loop that returned without a drain."""

    where: str
    error: Exception | None

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.where} ended without being asked to"
        return (
            str(self.error)
            if not self.is_defect
            else f"{self.where}: {self.error!r}; the log has the traceback"
        )

    @property
    def is_defect(self) -> bool:
        """Whether code is at fault: anything but a ``TidegateError``."""
        return not isinstance(self.error, TidegateError)


class ServiceLifecycle:
    """One process in the lifecycle."""

    def __init__(
        self, spec: ServiceSpec, config: object, settings: Settings, *, index: int, ports: ProcessPorts
    ) -> None:
        self._spec = spec
        self._config = config
        self._settings = settings
        self._index = index
        self._ports = ports
        self._drain = ports.drain
        self._log = ports.log
        self._instance = instance_of(spec, settings, index=index)
        self.failures: list[Failure] = []
        # Whether the parts accepted the settings; what fails later may succeed after a restart.
        self._built = False

    async def run(self) -> int:
        """Start, serve, drain, stop; returns the exit code (``runtime.exit_codes``).

        Raises:
            UnavailableError: there is no broker.
        """
        ports, settings = self._ports, self._settings
        topology = Topology(settings.run)
        stats = StatsBoard(service=self._spec.name, instance=self._instance, started_at_s=ports.clock.now_s())
        data_dir = Path(settings.data_dir) / self._instance
        data_dir.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(ports.open_telemetry(stats)) as telemetry:
            bus = await ports.open_bus(topology)
            context = ServiceContext(
                service=self._spec.name,
                instance=self._instance,
                index=self._index,
                settings=settings,
                topology=topology,
                data_dir=data_dir,
                bus=bus,
                clock=ports.clock,
                stats=stats,
                telemetry=telemetry,
                drain=self._drain,
                log=self._log,
                channels=ports.channels,
                live=LiveSettings(
                    LiveSections(staleness=settings.staleness, slos=settings.slos), ports.sections
                ),
            )
            try:
                await bus.await_streams(stream_specs(settings), timeout_s=settings.broker_wait_s)
                await self._serve(context)
            except TidegateError as error:
                self.failures.append(Failure("start", error))
                self._log.error("service_failed", error=str(error))
            finally:
                await context.channels.close()
                await bus.close()
        failed = bool(self.failures)
        stats.state = "failed" if failed else "stopped"
        self._log.info("service_stopped", failed=failed)
        return self._exit_code()

    def _exit_code(self) -> int:
        if not self.failures:
            return exit_codes.COMPLETED if self._drain.completed else exit_codes.DRAINED
        refused = not self._built and isinstance(self.failures[0].error, ConfigError)
        return exit_codes.BAD_INPUT if refused else exit_codes.FAILED

    async def _serve(self, context: ServiceContext) -> None:
        turn = self._spec.turn(context, self._config)
        build: Build = partial(self._spec.build, context, self._config)
        if turn is not None:
            context.stats.set(process.STANDBY, 1.0)
            build = await self._stand_by(context, turn) or build
            if self._drain.requested:
                return
            context.stats.set(process.STANDBY, 0.0)
        parts = await build()
        self._built = True
        address = self._address()
        async with served(parts, self._server(context, parts.servicers), address=address) as server:
            tasks = [asyncio.create_task(self._guard(name, loop)) for name, loop in parts.loops.items()]
            reporter = asyncio.create_task(self._report(context))
            self._ports.on_built()
            context.stats.state = "ready"
            await server.set_serving(serving=True)
            self._log.info("service_ready", address=address)
            await self._drain.wait()
            context.stats.state = "draining"
            context.bus.end_waits()
            await server.set_serving(serving=False)
            self._log.info("service_draining")
            await self._end_loops(tasks)
            reporter.cancel()
            await self._publish_stats(context)

    async def _stand_by(self, context: ServiceContext, turn: Awaitable[Build | None]) -> Build | None:
        """Answer health checks until it is this instance's turn. Its statistics are not published: it does no work."""
        address = self._address()
        async with served(ServiceParts(loops={}), self._server(context, []), address=address) as server:
            watching = asyncio.create_task(self._report(context, publishes=False))
            context.stats.state = "standby"
            await server.set_serving(serving=True, stands_by=True)
            self._log.info("service_stands_by", address=address)
            try:
                return await turn
            finally:
                watching.cancel()

    def _server(self, context: ServiceContext, registrations: Sequence[Registration]) -> ServiceServer:
        lifecycle = LifecycleServicer(context.stats, self._drain, context.clock)
        return self._ports.open_server(
            [*registrations, lifecycle.registration()],
            counting_refusals(partial(_count_call, context), context.stats),
        )

    def _address(self) -> str:
        return self._settings.listen or self._settings.addresses[self._spec.name][self._index]

    async def _end_loops(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Return once every loop has ended: by itself within ``drain_timeout_s``, or cancelled."""
        _, late = await asyncio.wait(tasks, timeout=self._settings.drain_timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _guard(self, name: str, loop: Loop) -> None:
        """Run a loop; one that ends before draining, for whatever reason, fails the service and drains it."""
        try:
            await loop()
        except asyncio.CancelledError:
            self._log.warning("loop_cancelled", loop=name, why="it did not end within drain_timeout_s")
            raise
        except Exception as error:  # the last place that can log it before the process ends
            self._fail(name, error)
        else:
            if not self._drain.requested:
                self.failures.append(Failure(name, None))
                self._log.error("loop_ended", loop=name)
        finally:
            self._drain.request()

    def _fail(self, name: str, error: Exception) -> None:
        """Note and log why a loop failed."""
        failure = Failure(name, error)
        self.failures.append(failure)
        if failure.is_defect:
            self._log.error("loop_crashed", loop=name, exc_info=error)
        else:
            self._log.error("loop_failed", loop=name, error=str(error))

    async def _report(self, context: ServiceContext, *, publishes: bool = True) -> None:
        """Report until cancelled. A service that cannot report fails: it would live, and the others miss it."""
        try:
            while True:
                context.bus.check()
                if publishes:
                    await self._publish_stats(context)
                else:
                    self._ports.record_usage(context.stats)
                await asyncio.sleep(self._settings.telemetry.stats_period_s)
        except Exception as error:
            self._fail(REPORT, error)
            self._drain.request()

    async def _publish_stats(self, context: ServiceContext) -> None:
        self._ports.record_usage(context.stats)
        context.stats.set(process.BROKER_RECONNECTS, context.bus.reconnects)
        context.stats.set(process.BACKPRESSURE, context.bus.backpressure_total)
        for operation, number in context.bus.failures.refused.items():
            context.stats.set(process.BROKER_REFUSED_BECAUSE.member(operation), number)
        for stream, number in context.bus.failures.messages.items():
            context.stats.set(process.MESSAGES_FAILED.member(stream), number)
        snapshot = context.stats.snapshot(at_s=context.clock.now_s())
        await publish_stats(context.bus, context.topology, snapshot)


def _count_call(context: ServiceContext, method: str, seconds: float, status: str) -> None:
    context.telemetry.served(method, seconds, status)
    if status == TidegateError.status:
        context.stats.add(process.CALLS_FAILED.member(method))
    elif status == RecordError.status:
        context.stats.add(process.CALLS_INVALID.member(method))


@contextlib.asynccontextmanager
async def served(
    parts: ServiceParts, server: ServiceServer, *, address: str
) -> AsyncGenerator[ServiceServer]:
    """The server of a built service, listening; leaving it stops the calls and closes the parts."""
    try:
        await server.start(address)
        yield server
    finally:
        # Calls first: their dependencies stay open until the last one was answered or refused.
        await server.stop(grace_s=CALLS_GRACE_S)
        if parts.close is not None:
            await parts.close()


def instance_of(spec: ServiceSpec, settings: Settings, *, index: int) -> str:
    """The name of this process: as configured, else by service and index."""
    return settings.instance or instance_name(spec.name, index)
