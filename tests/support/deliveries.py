"""Deliveries that end without an answer, as those to processes that are killed do."""

import asyncio

from tests.support.consumers import open_consumer
from tidegate.runtime.bus import Bus
from tidegate.wire.subjects import ConsumerSpec


async def lose_deliveries(bus: Bus, spec: ConsumerSpec, *, num_messages: int, times: int) -> None:
    """Deliver each of ``num_messages`` messages as often; the broker counts a release like a missing answer."""
    consumer = await open_consumer(bus, spec)
    async with asyncio.timeout(60.0):
        for _ in range(num_messages * times):
            while not (deliveries := await consumer.fetch(1, wait_s=1.0)):
                pass
            await deliveries[0].nak()
    await consumer.close()
