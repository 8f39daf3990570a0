"""Durable consumers for tests, which have no `tidegate up` that creates them."""

import asyncio
from collections.abc import Sequence

from tidegate.core.errors import UnavailableError
from tidegate.runtime.bus import Bus
from tidegate.runtime.consumer import Consumer, Delivery
from tidegate.wire.subjects import ConsumerSpec

TIMEOUT_S = 60.0


async def open_consumer(bus: Bus, spec: ConsumerSpec) -> Consumer:
    """A reader of a durable consumer, which is created as ``spec`` unless it exists."""
    await create_missing(bus, [spec])
    return await bus.consumer(spec.durable)


async def create_missing(bus: Bus, specs: Sequence[ConsumerSpec]) -> None:
    """Create the consumers that do not exist; the settings of the others stay."""
    for spec in specs:
        try:
            await (await bus.consumer(spec.durable, timeout_s=0.0)).close()
        except UnavailableError:
            await bus.bootstrap((), consumers=(spec,))


async def fetch_all(consumer: Consumer, count: int) -> list[Delivery]:
    """Exactly ``count`` deliveries, however long a busy broker takes for them."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(deliveries) < count:
            deliveries += await consumer.fetch(count - len(deliveries), wait_s=1.0)
    return deliveries
