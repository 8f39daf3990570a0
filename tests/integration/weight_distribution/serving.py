"""Weight distribution as a process would run it, inside of a test: real broker, real gRPC, real loops."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec

from tests.support.call_credentials import permitted_channel
from tests.support.service_harness import make_context, running
from tests.support.settings import make_settings
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.service import ServiceContext
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.weight_distribution.main import build
from tidegate.wire.clients.weight_distribution import WeightDistributionClient


@dataclass
class Serving:
    """A running service: its client, its raw channel, its context."""

    client: WeightDistributionClient
    channel: grpc.aio.Channel
    context: ServiceContext


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
    settings = msgspec.structs.replace(settings, data_dir=str(folder))
    config = config or WeightDistributionConfig(reconcile_period_s=0.1)
    channel = permitted_channel(settings.addresses["weight_distribution"][0])
    try:
        async with running(build, config, make_context("weight_distribution", settings, bus=bus)) as context:
            yield Serving(WeightDistributionClient(channel), channel, context)
    finally:
        await channel.close()
