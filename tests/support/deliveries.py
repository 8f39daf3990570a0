"""Deliveries that end without an answer, as those to processes that are killed do."""

from tests.support.consumers import fetch_all, open_consumer
from tidegate.runtime.bus import Bus
from tidegate.wire.subjects import ConsumerSpec


async def lose_deliveries(bus: Bus, spec: ConsumerSpec, *, num_messages: int, times: int) -> None:
    """Deliver each of ``num_messages`` messages as often; the broker counts a release like a missing answer."""
    consumer = await open_consumer(bus, spec)
    for _ in range(num_messages * times):
        [delivery] = await fetch_all(consumer, 1)
        await delivery.nak()
    await consumer.close()
