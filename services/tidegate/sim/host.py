"""One machine of a simulated cluster: runs the lifecycle of a service in a process that can be lost at any moment."""

import asyncio
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from tidegate.core.errors import TidegateError
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle import ProcessPorts, ServiceLifecycle
from tidegate.runtime.service import Channels, Loop, ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.telemetry import Telemetry
from tidegate.sim.broker import Broker
from tidegate.sim.chronicle import Chronicle
from tidegate.sim.client import Connection
from tidegate.sim.loop import VirtualClock
from tidegate.sim.network import Network
from tidegate.sim.process import Process
from tidegate.sim.rpc import Channel, Server, Switchboard
from tidegate.wire.subjects import Topology

# A supervisor waits this long before it restarts a process that exited without its doing.
RESTART_S = 0.5
# From SIGTERM a process has its drain timeout and this long; then the supervisor kills it.
STOP_GRACE_S = 5.0
# The loop of every simulated service through which faults run loops of their own.
INJECTED = "injected"


class Surroundings:
    """What all hosts share."""

    def __init__(
        self,
        settings: Settings,
        network: Network,
        broker: Broker,
        chronicle: Chronicle,
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
        self.chronicle = chronicle
        self.on_defect = on_defect
        self.on_drained = on_drained
        self.switchboard = Switchboard(network)
        self.clock = VirtualClock(asyncio.get_running_loop())
        # Processes that are gone; what their tasks refer to is freed at the end of the run.
        self.dead: list[Process] = []


class Host:
    """Where one instance of a service lives, dies and comes back, on the same disk."""

    def __init__(
        self,
        surroundings: Surroundings,
        spec: ServiceSpec,
        config: object,
        *,
        index: int,
        policy_delay_s: float = 0.0,
    ) -> None:
        """``policy_delay_s``: how much longer announcements take to reach it than everything else."""
        self._surroundings = surroundings
        self._spec = spec
        self._config = config
        self._index = index
        self.address = surroundings.settings.addresses[spec.name][index]
        self.instance = self.address
        self.state: Literal["down", "starting", "running", "draining"] = "down"
        self.process: Process | None = None
        self.connection: Connection | None = None
        self.policy_delay_s = policy_delay_s
        self.num_starts = 0
        # Of processes that were not killed, in order.
        self.exit_codes: list[int] = []
        # While it is held down, nothing starts it.
        self.held = False
        self._parts: ServiceParts | None = None
        self._lifecycle: ServiceLifecycle | None = None
        self._drain = Drain()
        self._draining_since_s = 0.0
        self._gone = asyncio.Event()
        self._injected: asyncio.Future[Loop] = asyncio.get_running_loop().create_future()

    @property
    def num_crashes(self) -> int:
        """Processes that exited with an error."""
        return sum(code != 0 for code in self.exit_codes)

    # -- life and death --------------------------------------------------------------------------------------------

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
        self.process.start(self._live(self.process))

    async def kill(self) -> None:
        """``kill -9``; returns when its files and locks are free, as they are when a process is gone."""
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
        """SIGTERM, and ``kill -9`` if it is still there when its time is over; returns when the process is gone."""
        process, gone = self.process, self._gone
        if process is None:
            return
        self._note("process_terminated")
        process.run(self._drain.request)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                gone.wait(), timeout=self._surroundings.settings.drain_timeout_s + STOP_GRACE_S
            )
        if self.process is process:
            await self.kill()

    def hold(self, *, held: bool) -> None:
        """Keep it from being started, or let it be started again."""
        self.held = held
        if not held:
            self.start()

    def inject(self, loop: Loop) -> None:
        """Run ``loop`` as one more loop of the service in this process; it may fail, end, or ignore a drain."""
        if not self._injected.done():
            self._injected.set_result(loop)

    def slow_policy(self, seconds: float) -> None:
        """Announcements take this much longer to reach it from now on."""
        self.policy_delay_s = seconds
        if self.connection is not None:
            self.connection.slow_s = seconds

    def _end(self, process: Process) -> None:
        """The process is gone; its defects are reported."""
        failures = [] if self._lifecycle is None else self._lifecycle.failures
        for failure in failures:
            if failure.is_defect:
                what = "ended without a drain" if failure.error is None else f"raised {failure.error!r}"
                self._surroundings.on_defect(f"{self.instance}.{failure.where} {what}")
        process.kill()
        self._surroundings.dead.append(process)
        self.process = self.connection = self._parts = self._lifecycle = None
        self._gone.set()

    def _has_drained(self) -> bool:
        """Whether each loop of the service had the time to end by itself: none failed and no timeout cut them short."""
        lifecycle, now_s = self._lifecycle, self._surroundings.clock.monotonic_s()
        return (
            lifecycle is not None
            and all(failure.where == INJECTED for failure in lifecycle.failures)
            and now_s - self._draining_since_s < self._surroundings.settings.drain_timeout_s
        )

    def _exited(self, process: Process, code: int) -> None:
        """The process ended by itself; its supervisor restarts it."""
        if self.process is not process:
            return
        self._note("process_exited", str(code))
        self.exit_codes.append(code)
        if self._has_drained():
            self._surroundings.on_drained(self.instance)
        self._end(process)
        self.state = "down"
        asyncio.get_running_loop().call_later(RESTART_S, self.start)

    def _note(self, event: str, detail: str = "") -> None:
        self._surroundings.chronicle.note(self.instance, event, detail=detail)

    # -- inside of the process -------------------------------------------------------------------------------------

    async def _live(self, process: Process) -> None:
        around = self._surroundings
        spec = dataclasses.replace(self._spec, build=self._build)
        self._lifecycle = ServiceLifecycle(
            spec, self._config, around.settings, index=self._index, ports=self._ports(process)
        )
        code = 1
        try:
            code = await self._lifecycle.run()
        except TidegateError as error:
            self._note("start_failed", str(error))
        except Exception as error:  # whatever it is, no service may end like this
            if not process.alive:
                return  # its coroutines are being closed at the end of the run
            around.on_defect(f"{self.instance} raised {error!r}")
        await process.cancel_tasks()
        # Outside of the process, which could not run the code that ends it.
        asyncio.get_running_loop().call_soon(self._exited, process, code, context=contextvars.Context())

    async def _build(self, context: ServiceContext, config: Any) -> ServiceParts:
        parts = await self._spec.build(context, config)
        loops = {**parts.loops, INJECTED: partial(_run_injected, self._injected, context.drain)}
        self._parts = dataclasses.replace(parts, loops=loops)
        return self._parts

    def _ports(self, process: Process) -> ProcessPorts:
        around = self._surroundings

        async def open_bus(topology: Topology) -> Bus:
            connection = Connection(
                around.broker,
                around.network,
                process,
                slow_prefix=topology.policy(""),
                slow_s=self.policy_delay_s,
            )
            await connection.wait_connected(timeout_s=around.settings.broker_wait_s)
            bus = Bus(connection.as_client(), topology, around.clock)
            connection.on_reconnect = bus.note_reconnect
            self.connection = connection
            return bus

        return ProcessPorts(
            clock=around.clock,
            drain=self._drain,
            log=around.chronicle.logger(self.instance, enabled=lambda: process.alive),
            channels=Channels(
                around.settings.addresses,
                open_channel=lambda address: Channel(around.switchboard, process, address).as_channel(),
            ),
            open_telemetry=lambda _stats: Telemetry(
                around.settings.telemetry, exporter=None, seed=self.num_starts
            ),
            open_bus=open_bus,
            open_server=lambda registrations, meter: Server(
                around.switchboard,
                process,
                registrations,
                meter=meter,
                on_serving=self._on_serving,
                on_defect=around.on_defect,
            ),
            record_usage=lambda _stats: None,
            on_built=lambda: None,
        )

    def _on_serving(self, serving: bool) -> None:
        self.state = "running" if serving else "draining"
        self._draining_since_s = self._surroundings.clock.monotonic_s()


async def _run_injected(injected: asyncio.Future[Loop], drain: Drain) -> None:
    """Wait for a loop that a fault injects, and run it; without one, return once draining."""
    draining = asyncio.create_task(drain.wait())
    await asyncio.wait((draining, injected), return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    if injected.done():
        await injected.result()()
