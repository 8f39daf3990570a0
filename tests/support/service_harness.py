"""Runs a service inside of a test as its process would: real broker, real gRPC, its own loops."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import structlog

from tests.support.environments import describing
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.instances import instance_name
from tidegate.runtime.lifecycle import served
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.service import Channels, ServiceContext, ServiceParts
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry import Telemetry
from tidegate.wire.subjects import Topology

ConfigT = TypeVar("ConfigT")
POLL_S = 0.01
TIMEOUT_S = 60.0


def make_context(service: str, settings: Settings, *, bus: Bus, index: int = 0) -> ServiceContext:
    """The context that the lifecycle passes to a service's ``build``."""
    instance = instance_name(service, index)
    data_dir = Path(settings.data_dir) / instance
    data_dir.mkdir(parents=True, exist_ok=True)
    return ServiceContext(
        service=service,
        instance=instance,
        index=index,
        settings=settings,
        topology=Topology(settings.run),
        data_dir=data_dir,
        bus=bus,
        clock=SystemClock(),
        stats=StatsBoard(service=service, instance=instance, started_at_s=0.0),
        telemetry=Telemetry(settings.telemetry, exporter=None),
        drain=Drain(),
        log=structlog.get_logger(instance),
        channels=Channels(settings.addresses),
    )


@asynccontextmanager
async def running(
    build: Callable[[ServiceContext, ConfigT], Awaitable[ServiceParts]],
    config: ConfigT,
    context: ServiceContext,
) -> AsyncGenerator[ServiceContext, None]:
    """One life of a service; leaving drains it, and every loop must have returned by itself."""
    async with _environment(context):
        parts = await build(context, config)
    address = context.settings.addresses[context.service][context.index]
    try:
        async with served(parts, RpcServer(parts.servicers), address=address):
            loops = [asyncio.ensure_future(loop()) for loop in parts.loops.values()]
            try:
                yield context
            finally:
                context.drain.request()
                async with asyncio.timeout(TIMEOUT_S):
                    await asyncio.gather(*loops)
    finally:
        await context.channels.close()


def _environment(context: ServiceContext) -> AbstractAsyncContextManager[None]:
    """The environment service that an actor or learner of segments asks before it is built."""
    settings = context.settings
    if context.service in ("actor", "learner") and settings.workload.kind == "segments":
        return describing(settings.addresses["environment"][0])
    return nullcontext()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the timeout only ends a hang, so it suits a machine that is busy with other things."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(POLL_S)
