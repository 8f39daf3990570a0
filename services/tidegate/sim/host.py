"""One host of a simulated cluster: runs the lifecycle of a service in a process that can be killed at any moment."""

import asyncio
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from tidegate.core.errors import TidegateError
from tidegate.runtime.bus import Bus
from tidegate.runtime.bus_failures import BusFailures
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle import ProcessPorts, ServiceLifecycle
from tidegate.runtime.races import is_set_within
from tidegate.runtime.service import Channels, Loop, ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.telemetry import Telemetry
from tidegate.sim.broker import SimulatedBroker
from tidegate.sim.connection import Connection
from tidegate.sim.event_log import EventLog
from tidegate.sim.network import Network
from tidegate.sim.process import Process
from tidegate.sim.rpc import Channel, Server, Switchboard
from tidegate.sim.virtual_loop import VirtualClock
from tidegate.wire.subjects import Topology

# The backoff of the supervisor before it restarts a process that exited.
RESTART_S = 0.5
# The supervisor kills a process this long after its drain timeout.
STOP_GRACE_S = 5.0
# The name of the loop that runs what a fault injects.
INJECTED = "injected"


class World:
    """The environment that all hosts share."""

    def __init__(
        self,
        settings: Settings,
        network: Network,
        broker: SimulatedBroker,
        event_log: EventLog,
        *,
        on_defect: Callable[[str], None],
        on_drained: Callable[[str], None],
    ) -> None:
        """``on_defect``: called with what no service may do, such as raising anything but a ``TidegateError``.

        ``on_drained``: called with each instance whose process exited in time, its loops ended by themselves.
        """
        self.settings = settings
        self.topology = Topology(settings.run)
        self.network = network
        self.broker = broker
        self.event_log = event_log
        self.on_defect = on_defect
        self.on_drained = on_drained
        self.switchboard = Switchboard(network)
        self.clock = VirtualClock(asyncio.get_running_loop())
        # Processes that ended; the objects of their tasks are freed at the end of the run.
        self.gone: list[Process] = []


class HostClock:
    """The clock of one host: its wall time may be wrong, its durations are right."""

    def __init__(self, true: VirtualClock) -> None:
        self._true = true
        self.ahead_s = 0.0

    def now_s(self) -> float:
        """Seconds since the epoch, as this host has them."""
        return self._true.now_s() + self.ahead_s

    def monotonic_s(self) -> float:
        """Seconds since the start."""
        return self._true.monotonic_s()


class Host:
    """Runs the processes of one instance of a service, one after the other, on the same disk."""

    def __init__(
        self,
        world: World,
        spec: ServiceSpec,
        config: object,
        *,
        index: int,
        policy_delay_s: float = 0.0,
    ) -> None:
        """``policy_delay_s``: seconds that announcements of policies take beyond the network's delay."""
        self._world = world
        self._spec = spec
        self._config = config
        self._index = index
        self.address = world.settings.addresses[spec.name][index]
        self.instance = self.address
        self.state: Literal["down", "starting", "running", "draining"] = "down"
        self.process: Process | None = None
        self.connection: Connection | None = None
        self.policy_delay_s = policy_delay_s
        self.num_starts = 0
        self.clock = HostClock(world.clock)
        # Exit codes of the processes that were not killed, in order.
        self.exit_codes: list[int] = []
        # While held, nothing starts a process.
        self.held = False
        self._parts: ServiceParts | None = None
        self._lifecycle: ServiceLifecycle | None = None
        self._drain = Drain()
        self._failures = BusFailures()
        self._draining_since_s = 0.0
        self._gone = asyncio.Event()
        self._injected: asyncio.Future[Loop] = asyncio.get_running_loop().create_future()

    @property
    def num_crashes(self) -> int:
        """Processes that exited with an error."""
        return sum(code != 0 for code in self.exit_codes)

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process, unless there is one or a fault holds the host down."""
        if self.state != "down" or self.held:
            return
        self.state = "starting"
        self.num_starts += 1
        self.process = Process(self.instance)
        self._drain, self._gone = Drain(), asyncio.Event()
        self._injected = asyncio.get_running_loop().create_future()
        self._note("process_started")
        self.process.start(self._run(self.process))

    async def kill(self) -> None:
        """``kill -9``; returns when the process' files and locks are free."""
        process, parts = self.process, self._parts
        if process is None:
            return
        self._note("process_killed")
        self._end(process)
        if parts is not None and parts.close is not None:
            with contextlib.suppress(TidegateError):
                await parts.close()
        self.state = "down"

    async def drain(self) -> None:
        """SIGTERM, and ``kill -9`` after the drain timeout and a grace; returns when the process has exited."""
        process, gone = self.process, self._gone
        if process is None:
            return
        self._note("process_terminated")
        process.run(self._drain.request)
        await is_set_within(gone, timeout_s=self._world.settings.drain_timeout_s + STOP_GRACE_S)
        if self.process is process:
            await self.kill()

    def hold(self, *, held: bool) -> None:
        """While ``held``, nothing starts a process here; released, one starts at once."""
        self.held = held
        if not held:
            self.start()

    def inject(self, loop: Loop) -> None:
        """Run ``loop`` as one more loop of the service in this process; it may fail, end, or ignore a drain."""
        if not self._injected.done():
            self._injected.set_result(loop)

    def slow_policy(self, seconds: float) -> None:
        """Delay announcements of policies by ``seconds`` from now on."""
        self.policy_delay_s = seconds
        if self.connection is not None:
            self.connection.slow_s = seconds

    def _end(self, process: Process) -> None:
        """Report the defects of a process and remove it."""
        failures = [] if self._lifecycle is None else self._lifecycle.failures
        for failure in failures:
            if failure.is_defect:
                what = "ended without a drain" if failure.error is None else f"raised {failure.error!r}"
                self._world.on_defect(f"{self.instance}.{failure.where} {what}")
        for stream in self._failures.messages:
            self._world.on_defect(f"{self.instance} failed at a message of {stream}")
        self._failures = BusFailures()
        process.kill()
        self._world.gone.append(process)
        self.process = self.connection = self._parts = self._lifecycle = None
        self._gone.set()

    def _has_drained(self) -> bool:
        """Whether each loop of the service had the time to end by itself: none failed and no timeout cut them short."""
        lifecycle, now_s = self._lifecycle, self._world.clock.monotonic_s()
        return (
            lifecycle is not None
            and all(failure.where == INJECTED for failure in lifecycle.failures)
            and now_s - self._draining_since_s < self._world.settings.drain_timeout_s
        )

    def _exited(self, process: Process, code: int) -> None:
        """The process ended by itself; its supervisor restarts it."""
        if self.process is not process:
            return
        self._note("process_exited", str(code))
        self.exit_codes.append(code)
        if self._has_drained():
            self._world.on_drained(self.instance)
        self._end(process)
        self.state = "down"
        asyncio.get_running_loop().call_later(RESTART_S, self.start)

    def _note(self, event: str, detail: str = "") -> None:
        self._world.event_log.note(self.instance, event, detail=detail)

    # -- inside of the process -------------------------------------------------------------------------------------

    async def _run(self, process: Process) -> None:
        world = self._world
        spec = dataclasses.replace(self._spec, build=self._build)
        self._lifecycle = ServiceLifecycle(
            spec, self._config, world.settings, index=self._index, ports=self._ports(process)
        )
        code = 1
        try:
            code = await self._lifecycle.run()
        except Exception as error:
            if not process.alive:
                return  # its coroutines are being closed at the end of the run
            self._note("start_failed", str(error))
            if not isinstance(error, TidegateError):
                world.on_defect(f"{self.instance} raised {error!r}")
        await process.cancel_tasks()
        # Outside of the process: a killed process runs no code.
        asyncio.get_running_loop().call_soon(self._exited, process, code, context=contextvars.Context())

    async def _build(self, context: ServiceContext, config: Any) -> ServiceParts:
        parts = await self._spec.build(context, config)
        loops = {**parts.loops, INJECTED: partial(_run_injected, self._injected, context.drain)}
        self._parts = dataclasses.replace(parts, loops=loops)
        return self._parts

    def _ports(self, process: Process) -> ProcessPorts:
        world = self._world

        async def open_bus(topology: Topology) -> Bus:
            connection = Connection(
                world.broker,
                world.network,
                process,
                slow_prefix=topology.policy(""),
                slow_s=self.policy_delay_s,
            )
            await connection.wait_connected(timeout_s=world.settings.broker_wait_s)
            bus = Bus(connection.as_client(), topology, self.clock)
            self._failures = bus.failures
            connection.on_reconnect = bus.note_reconnect
            self.connection = connection
            return bus

        return ProcessPorts(
            clock=self.clock,
            drain=self._drain,
            log=world.event_log.logger(self.instance, enabled=lambda: process.alive),
            channels=Channels(
                world.settings.addresses,
                open_channel=lambda address: Channel(
                    world.switchboard, process, address, role=self._spec.name
                ).as_channel(),
            ),
            open_telemetry=lambda _stats: Telemetry(
                world.settings.telemetry, exporter=None, seed=self.num_starts
            ),
            open_bus=open_bus,
            open_server=lambda registrations, meter: Server(
                world.switchboard,
                process,
                registrations,
                meter=meter,
                on_serving=self._on_serving,
                on_defect=world.on_defect,
            ),
            record_usage=lambda _stats: None,
            on_built=lambda: None,
        )

    def _on_serving(self, serving: bool) -> None:
        self.state = "running" if serving else "draining"
        self._draining_since_s = self._world.clock.monotonic_s()


async def _run_injected(injected: asyncio.Future[Loop], drain: Drain) -> None:
    """Wait for a loop that a fault injects, and run it; without one, return once draining."""
    draining = asyncio.create_task(drain.wait())
    await asyncio.wait((draining, injected), return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    if injected.done():
        await injected.result()()
