"""Reads a JetStream work queue with the client library alone: fetch a batch, acknowledge each, again.

Usage: ``python -m benchmarks.peers.raw_consumer URL USER PASSWORD STREAM DURABLE BATCH``; ends at SIGTERM.
"""

import asyncio
import signal
import sys

import nats.errors
import uvloop
from nats.aio.client import Client
from nats.js import JetStreamContext

FETCH_TIMEOUT_S = 1.0


async def consume(url: str, user: str, password: str, *, stream: str, durable: str, batch: int) -> None:
    """Until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    client = Client()
    await client.connect(url, user=user, password=password, inbox_prefix=f"_INBOX_{user}")
    subscription = await JetStreamContext(client).pull_subscribe_bind(durable=durable, stream=stream)
    while not stopped.is_set():
        try:
            messages = await subscription.fetch(batch, timeout=FETCH_TIMEOUT_S)
        except nats.errors.TimeoutError:
            continue
        for message in messages:
            await message.ack()
    await client.close()


if __name__ == "__main__":
    uvloop.run(consume(*sys.argv[1:4], stream=sys.argv[4], durable=sys.argv[5], batch=int(sys.argv[6])))
