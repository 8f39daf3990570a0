"""Runs a service inside of a test as its process would: real broker, real gRPC, its own loops."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import grpc
import structlog

from tests.support.call_credentials import accepted, channel_as, permitted_channel
from tests.support.consumers import create_missing
from tests.support.environments import describing
from tests.support.loop_stalls import stalls_of
from tidegate.actor.config import ActorConfig
from tidegate.environment.config import EnvironmentConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.instances import instance_name
from tidegate.runtime.lifecycle import served
from tidegate.runtime.live_settings import LiveSections, LiveSettings
from tidegate.runtime.loop_watchdog import LoopWatchdog
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.service import Channels, ServiceContext, ServiceParts
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.stream_creation import ConsumerSettings, consumers_of
from tidegate.runtime.telemetry import Telemetry
from tidegate.wire.call_permissions import Role
from tidegate.wire.subjects import Topology

ConfigT = TypeVar("ConfigT")
POLL_S = 0.01
# Half of what a test may take: a hang is named by what was waited for.
TIMEOUT_S = 150.0


class HarnessChannels(Channels):
    """The channels of a service, and beside them those of the test that calls it."""

    def __init__(self, settings: Settings, role: Role) -> None:
        super().__init__(settings.addresses, open_channel=partial(channel_as, role))
        self._of_test = Channels(settings.addresses, open_channel=permitted_channel)

    def of_test(self, service: str) -> grpc.aio.Channel:
        """A channel on which each method is called as a role that may call it."""
        return self._of_test.get(service)

    async def close(self) -> None:
        """Close them all."""
        await super().close()
        await self._of_test.close()


def channel_of_test(context: ServiceContext, service: str) -> grpc.aio.Channel:
    """The test's own channel to a service, closed with those of the context."""
    assert isinstance(context.channels, HarnessChannels)
    return context.channels.of_test(service)


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
        channels=HarnessChannels(settings, cast("Role", service)),
        live=LiveSettings(LiveSections(staleness=settings.staleness, slos=settings.slos)),
    )


@asynccontextmanager
async def running(
    build: Callable[[ServiceContext, ConfigT], Awaitable[ServiceParts]],
    config: ConfigT,
    context: ServiceContext,
) -> AsyncGenerator[ServiceContext, None]:
    """One life of a service; leaving drains it, and every loop must have returned by itself.

    The test fails if the event loop stood still because it computed, be it in the service or in the test.
    """
    await create_consumers(context, config)
    async with _environment(context):
        parts = await build(context, config)
    address = context.settings.listen or context.settings.addresses[context.service][context.index]
    watchdog = LoopWatchdog(context.log)
    watchdog.start()
    try:
        async with served(parts, RpcServer(parts.servicers, accepted()), address=address) as server:
            await server.set_serving(serving=True)
            loops = [asyncio.ensure_future(loop()) for loop in parts.loops.values()]
            try:
                yield context
            finally:
                context.drain.request()
                async with asyncio.timeout(TIMEOUT_S):
                    await asyncio.gather(*loops)
    finally:
        watchdog.stop()
        await context.channels.close()
    assert not (stalls := stalls_of(watchdog)), stalls


async def create_consumers(context: ServiceContext, config: object) -> None:
    """The durable consumers of a run with this service, as `tidegate up` creates them before services start."""
    await create_missing(context.bus, consumers_of(context.settings, _consumer_settings(config)))


def _consumer_settings(config: object) -> ConsumerSettings:
    """Of a service's section; the defaults of the sections that it is not."""
    actor = config if isinstance(config, ActorConfig) else ActorConfig()
    environment = config if isinstance(config, EnvironmentConfig) else EnvironmentConfig()
    return ConsumerSettings(
        task_ack_wait_s=actor.ack_wait_s,
        rollout_ack_wait_s=environment.ack_wait_s,
        unscored_groups_max=environment.max_ack_pending,
    )


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
