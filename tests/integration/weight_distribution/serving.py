"""Weight distribution as a process would run it, inside of a test: real broker, real gRPC, real loops."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from tests.support.settings import make_settings
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.drain import Drain
from tidegate.runtime.rpc import RpcServer, open_channel
from tidegate.runtime.service import Channels, ServiceContext
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry import Telemetry
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.weight_distribution.main import build
from tidegate.wire.clients.weight_distribution import WeightDistributionClient
from tidegate.wire.subjects import Topology


@dataclass
class Serving:
    """A running service: its client, its raw channel, its context."""

    client: WeightDistributionClient
    channel: grpc.aio.Channel
    context: ServiceContext


def make_context(service: str, settings: Settings, *, bus: Bus, data_dir: Path) -> ServiceContext:
    data_dir.mkdir(parents=True, exist_ok=True)
    return ServiceContext(
        service=service,
        instance=service,
        index=0,
        settings=settings,
        topology=Topology(settings.run),
        data_dir=data_dir,
        bus=bus,
        clock=SystemClock(),
        stats=StatsBoard(service=service, instance=service, started_at_s=0.0),
        telemetry=Telemetry(settings.telemetry, exporter=None),
        drain=Drain(),
        log=structlog.get_logger(service),
        channels=Channels(settings.addresses),
    )


@asynccontextmanager
async def serving(
    folder: Path,
    bus: Bus,
    *,
    config: WeightDistributionConfig | None = None,
    settings: Settings | None = None,
) -> AsyncGenerator[Serving, None]:
    """One process of the service on the data in ``folder``."""
    settings = settings or make_settings(folder, broker_url="")
    context = make_context("weight_distribution", settings, bus=bus, data_dir=folder / "weight_distribution")
    parts = await build(context, config or WeightDistributionConfig(reconcile_period_s=0.1))
    server = RpcServer(parts.servicers)
    address = settings.addresses["weight_distribution"][0]
    await server.start(address)
    channel = open_channel(address)
    loops = [asyncio.ensure_future(loop()) for loop in parts.loops.values()]
    try:
        yield Serving(WeightDistributionClient(channel), channel, context)
    finally:
        context.drain.request()
        await asyncio.gather(*loops)
        await channel.close()
        await server.stop(grace_s=0.2)
