"""One machine of a simulated cluster: runs a service as ``runtime.service`` does, and can lose it at any moment."""

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, cast

from tidegate.core.errors import TidegateError
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.service import Channels, ServiceContext, ServiceParts, ServiceSpec, max_tasks
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry import Telemetry
from tidegate.sim.broker import Broker
from tidegate.sim.chronicle import Chronicle
from tidegate.sim.client import Connection
from tidegate.sim.loop import VirtualClock
from tidegate.sim.network import Network
from tidegate.sim.process import Process
from tidegate.sim.rpc import Channel, Server, Switchboard
from tidegate.wire.stats import encode_stats
from tidegate.wire.subjects import Topology

# A supervisor waits this long before it starts a process that died by itself.
RESTART_S = 0.5
STATS_PERIOD_S = 0.5


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
    ) -> None:
        """``on_defect`` hears of what no service may ever do, such as raising something that is not ours."""
        self.settings = settings
        self.topology = Topology(settings.run)
        self.network = network
        self.broker = broker
        self.chronicle = chronicle
        self.on_defect = on_defect
        self.switchboard = Switchboard(network)
        self.clock = VirtualClock(asyncio.get_running_loop())
        # Killed processes; what their tasks refer to is freed at the end of the run.
        self.dead: list[Process] = []


class _Channels:
    """Stands for ``runtime.service.Channels``."""

    def __init__(self, surroundings: Surroundings, process: Process) -> None:
        self._surroundings = surroundings
        self._process = process

    def get(self, service: str, index: int = 0) -> object:
        address = self._surroundings.settings.addresses[service][index]
        return Channel(self._surroundings.switchboard, self._process, address)

    async def close(self) -> None:
        """Nothing is open."""


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
        self.num_crashes = 0
        # While it is held down, nothing starts it.
        self.held = False
        self._parts: ServiceParts | None = None
        self._drain = Drain()
        self._loops: list[asyncio.Task[None]] = []

    # -- life and death --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new process, unless there is one or somebody holds it down."""
        if self.state != "down" or self.held:
            return
        self.state = "starting"
        self.num_starts += 1
        self.process = Process(self.instance)
        self._note("process_started")
        self.process.start(self._live(self.process))

    async def kill(self) -> None:
        """``kill -9``; returns when its files and locks are free, as they are when a process is gone."""
        process, parts = self.process, self._parts
        if process is None or self.state == "down":
            return
        self._note("process_killed")
        process.kill()
        self._surroundings.dead.append(process)
        self.process = self._parts = self.connection = None
        self._loops = []
        if parts is not None and parts.close is not None:
            with contextlib.suppress(TidegateError):
                await parts.close()
        self.state = "down"

    async def drain(self) -> None:
        """SIGTERM: let it finish, at most ``drain_timeout_s``; then it is down."""
        if self.state != "running" or self.process is None:
            return
        process, loops = self.process, self._loops
        self.state = "draining"
        self._note("process_draining")
        process.run(self._drain.request)
        await asyncio.wait(loops, timeout=self._surroundings.settings.drain_timeout_s)
        if self.process is process:
            await self.kill()

    def hold(self, *, held: bool) -> None:
        """Keep it from being started, or let it be started again."""
        self.held = held
        if not held:
            self.start()

    def slow_policy(self, seconds: float) -> None:
        """Announcements take this much longer to reach it from now on."""
        self.policy_delay_s = seconds
        if self.connection is not None:
            self.connection.slow_s = seconds

    def _crash(self, process: Process, event: str, detail: str) -> None:
        """The process ends by itself; its supervisor starts it again."""
        if self.process is not process or self.state == "down":
            return
        self.num_crashes += 1
        self._note(event, detail)
        loop = asyncio.get_running_loop()
        loop.call_later(RESTART_S, self.start)
        # Outside of the process, which could not run the code that ends it.
        self._ending = loop.create_task(self.kill(), context=contextvars.Context())

    def _note(self, event: str, detail: str = "") -> None:
        self._surroundings.chronicle.note(self.instance, event, detail=detail)

    # -- inside of the process -------------------------------------------------------------------------------------

    def _context(self, process: Process) -> ServiceContext:
        around = self._surroundings
        connection = Connection(
            around.broker,
            around.network,
            process,
            slow_prefix=around.topology.policy(""),
            slow_s=self.policy_delay_s,
        )
        bus = Bus(connection.as_client(), around.topology, around.clock)
        connection.on_reconnect = bus.note_reconnect
        self.connection = connection
        self._drain = Drain()
        data_dir = Path(around.settings.data_dir) / self.instance
        data_dir.mkdir(parents=True, exist_ok=True)
        return ServiceContext(
            service=self._spec.name,
            instance=self.instance,
            index=self._index,
            settings=around.settings,
            topology=around.topology,
            data_dir=data_dir,
            bus=bus,
            clock=around.clock,
            stats=StatsBoard(
                service=self._spec.name, instance=self.instance, started_at_s=around.clock.now_s()
            ),
            telemetry=Telemetry(around.settings.telemetry, exporter=None, seed=self.num_starts),
            drain=self._drain,
            log=around.chronicle.logger(self.instance),
            channels=cast("Channels", _Channels(around, process)),
        )

    async def _live(self, process: Process) -> None:
        around = self._surroundings
        context = self._context(process)
        try:
            await context.bus.bootstrap(around.topology.streams(max_tasks=max_tasks(around.settings)))
            parts = await self._spec.build(context, self._config)
        except TidegateError as error:
            self._crash(process, "start_failed", str(error))
            return
        self._parts = parts
        around.switchboard.listen(self.address, Server(process, parts.servicers))
        self._loops = [
            asyncio.create_task(self._guard(process, name, loop)) for name, loop in parts.loops.items()
        ]
        context.stats.state = "ready"
        self.state = "running"
        self._note("process_ready")
        await self._report(context)

    async def _guard(self, process: Process, name: str, loop: Callable[[], Awaitable[Any]]) -> None:
        try:
            await loop()
        except TidegateError as error:
            self._crash(process, "loop_failed", f"{name}: {error}")
        except Exception as error:  # whatever it is, no service may end like this
            if not process.alive:
                return  # it is being buried
            self._surroundings.on_defect(f"{self.instance}.{name} raised {error!r}")
            self._crash(process, "loop_crashed", f"{name}: {error!r}")
        else:
            if not self._drain.requested:
                self._surroundings.on_defect(f"{self.instance}.{name} ended by itself")
                self._crash(process, "loop_ended", name)

    async def _report(self, context: ServiceContext) -> None:
        subject = context.topology.stats(self.instance)
        while True:
            snapshot = context.stats.snapshot(at_s=context.clock.now_s())
            await context.bus.publish_core(subject, encode_stats(snapshot))
            await asyncio.sleep(STATS_PERIOD_S)
