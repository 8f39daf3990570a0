"""A service in a process of its own: signals, a real broker, a real gRPC server, the machine's clock."""

import asyncio
import gc
import os
import resource
import signal
from functools import partial

import structlog
import uvloop

from tidegate.catalogue import process
from tidegate.runtime.broker_password import broker_password
from tidegate.runtime.bus import Bus
from tidegate.runtime.certificate_expiry import expires_at_s
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.freed_memory import keep_freed_memory
from tidegate.runtime.lifecycle import ProcessPorts, ServiceLifecycle, instance_of
from tidegate.runtime.live_settings import SectionsSource
from tidegate.runtime.loop_watchdog import LoopWatchdog
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.service import ServiceSpec
from tidegate.runtime.service_credentials import accepted_tokens, channels_of
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry import open_telemetry
from tidegate.runtime.termination_message import write_termination_message
from tidegate.runtime.tls import identity_folder
from tidegate.wire.subjects import Topology

# Allocations between two collections (Python's own 700 fall into the middle of a batch, all of which is alive), and how
# many young ones make an old one. What is in no cycle, which is nearly everything, is freed at once anyhow.
COLLECT_AFTER = (10_000, 10, 10)
# Beyond ``drain_timeout_s``, for what a lifecycle closes after its loops; and for the rest, once it has returned.
DRAIN_GRACE_S = 30.0
EXIT_GRACE_S = 15.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def run_service(
    spec: ServiceSpec,
    config: object,
    settings: Settings,
    *,
    index: int = 0,
    sections: SectionsSource | None = None,
) -> int:
    """Run one service until it drains; returns the exit code.

    ``sections``: where it finds changed sections of its run file.

    A process that should end and does not is ended by the kernel (SIGALRM), for which it needs neither a thread nor
    memory: one that could start no thread for want of memory waits for it without end.
    """
    keep_freed_memory()
    instead = spec.instead(config, settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(instead or _run(spec, config, settings, index=index, sections=sections))


async def _run(
    spec: ServiceSpec, config: object, settings: Settings, *, index: int, sections: SectionsSource | None
) -> int:
    drain, clock = Drain(), SystemClock()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain.request)
    instance = instance_of(spec, settings, index=index)
    accepted = accepted_tokens(settings)
    log = structlog.get_logger(instance)
    watchdog = LoopWatchdog(log)
    ports = ProcessPorts(
        clock=clock,
        drain=drain,
        log=log,
        channels=channels_of(settings, spec.name),
        open_telemetry=lambda stats: open_telemetry(
            settings.telemetry, service=spec.name, instance=instance, run=settings.run, board=stats
        ),
        open_bus=partial(open_bus, settings, instance, clock),
        open_server=lambda registrations, meter: RpcServer(registrations, accepted, meter=meter),
        record_usage=partial(_record_usage, watchdog),
        on_built=partial(_on_built, watchdog),
        sections=sections,
    )
    limiting = asyncio.create_task(_limit_drain(drain, settings.drain_timeout_s))
    try:
        lifecycle = ServiceLifecycle(spec, config, settings, index=index, ports=ports)
        code = await lifecycle.run()
        if lifecycle.failures:
            write_termination_message("; ".join(str(failure) for failure in lifecycle.failures))
        return code
    finally:
        watchdog.stop()
        limiting.cancel()
        signal.setitimer(signal.ITIMER_REAL, EXIT_GRACE_S)


async def _limit_drain(drain: Drain, drain_timeout_s: float) -> None:
    await drain.wait()
    signal.setitimer(signal.ITIMER_REAL, drain_timeout_s + DRAIN_GRACE_S)


async def open_bus(settings: Settings, instance: str, clock: SystemClock, topology: Topology) -> Bus:
    """The connection of a service's instance to the broker of its run.

    Raises:
        UnavailableError: there is no broker within ``settings.broker_wait_s``.
    """
    return await Bus.connect(
        settings.broker_url,
        user=settings.broker_user,
        password=broker_password(settings.broker_password, settings.broker_password_path),
        name=instance,
        topology=topology,
        clock=clock,
        timeout_s=settings.broker_wait_s,
    )


def _on_built(watchdog: LoopWatchdog) -> None:
    """Exclude the built service from garbage collection: it lives as long as the process. Watch its loop from here."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    watchdog.start()


def _record_usage(watchdog: LoopWatchdog, stats: StatsBoard) -> None:
    watchdog.report(stats)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    stats.set(process.CPU_S, usage.ru_utime + usage.ru_stime)
    stats.set(process.RSS_MB, _resident_bytes() / 1e6)
    certificates = identity_folder()
    if certificates is not None and (ends_at_s := expires_at_s(certificates)) is not None:
        stats.set(process.CERTIFICATE_EXPIRES_AT_S, ends_at_s)


def _resident_bytes() -> int:
    """Resident memory of this process; its peak where the kernel has no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
