"""A pull consumer that returns available messages as soon as there is one.

The client library's own fetch asks twice (once without waiting, once with), which doubles the latency of an empty
queue. Here one request stays open; messages beyond the caller's batch wait in a local queue bounded by the request. A
broker that starts again does not know the request: it is made again after a reconnect, and where the old one lives on,
in a broker of several servers, the queue holds at most twice as much.
"""

import asyncio
import contextlib
import itertools
import json
from collections import deque
from collections.abc import Sequence

from nats.aio.subscription import Subscription

from tidegate.runtime.broker_client import BrokerClient, Received
from tidegate.runtime.bus_failures import BusFailures
from tidegate.runtime.client_tasks import SEND_ERRORS
from tidegate.runtime.clock import Clock
from tidegate.runtime.races import is_set_within
from tidegate.wire.subjects import DurableName

# A request that was lost without a reconnect ends only at its own expiry, hence the cap.
WAIT_MAX_S = 5.0
# Before the next request after one that was refused, or while there is no connection.
PAUSE_S = 0.05
# How much longer than the broker we wait before a request counts as lost.
EXPIRY_GRACE_S = 0.25
# For the broker's last messages to a consumer that closes; beyond it they are redelivered after their ack wait.
CLOSE_TIMEOUT_S = 2.0


class Delivery:
    """One delivered message: ack it once its effect is durable, nak it for redelivery."""

    __slots__ = ("_client", "_reply", "data", "headers", "subject")

    def __init__(self, client: BrokerClient, message: Received) -> None:
        self._client = client
        self._reply = message.reply
        self.data = message.data
        self.headers = message.headers
        self.subject = message.subject

    @property
    def num_delivered(self) -> int:
        """Number of deliveries, including this one."""
        return self._token(0)

    @property
    def sequence(self) -> int:
        """Its sequence number in the stream."""
        return self._token(1)

    def _token(self, position: int) -> int:
        """The delivery's metadata, from the ack subject.

        Its tokens from the end are: pending, timestamp, consumer sequence, stream sequence, deliveries.
        """
        tokens = self._reply.split(".")
        # v1 has nine tokens; v2 puts domain and account in front and may add a random token at the end.
        return int(tokens[(4 if len(tokens) == 9 else 6) + position])

    async def ack(self) -> None:
        """The work is durable elsewhere: the stream may delete the message."""
        await self.ack_all([self])

    @staticmethod
    async def ack_all(deliveries: Sequence["Delivery"]) -> None:
        """Acknowledge deliveries of one consumer, as one command."""
        await Delivery._answer(deliveries, b"+ACK")

    async def nak(self, delay_s: float = 0.0) -> None:
        """Request redelivery to any consumer after ``delay_s``."""
        body = b"-NAK" if delay_s <= 0 else b'-NAK {"delay": %d}' % int(delay_s * 1e9)
        await self._answer([self], body)

    async def in_progress(self) -> None:
        """Still working: restart the redelivery timer."""
        await self._answer([self], b"+WPI")

    async def term(self) -> None:
        """Never deliver it again."""
        await self._answer([self], b"+TERM")

    @staticmethod
    async def _answer(deliveries: Sequence["Delivery"], body: bytes) -> None:
        if not deliveries:
            return
        # A lost answer means a redelivery, which every reader must handle anyway.
        with contextlib.suppress(*SEND_ERRORS):
            await deliveries[0]._client.answer([delivery._reply for delivery in deliveries], body)


class Consumer:
    """Readers of one durable. Not for concurrent ``fetch`` calls: one loop owns it."""

    def __init__(self, client: BrokerClient, durable: DurableName, clock: Clock) -> None:
        """Use ``open``."""
        self._client = client
        self._clock = clock
        self._next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{durable.stream}.{durable.name}"
        self._inbox = client.new_inbox()
        self._requests = itertools.count()
        self._last_request = -1
        self._ready: deque[Received] = deque()
        self._arrived = asyncio.Event()
        self._credits = 0
        self._expires_at_s = 0.0
        # Whether the broker refused the last request; one that restarts refuses each at once.
        self._refused = False
        self._waits = True
        self._subscription: Subscription | None = None
        self.request_errors_total = 0

    @classmethod
    async def open(
        cls, client: BrokerClient, durable: DurableName, clock: Clock, failures: BusFailures
    ) -> "Consumer":
        """Bind to a durable that exists."""
        consumer = cls(client, durable, clock)
        consumer._subscription = await client.follow(f"{consumer._inbox}.*", consumer._receive, failures)
        return consumer

    def _receive(self, message: Received) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._ready.append(message)
            self._credits = max(0, self._credits - 1)
        else:
            # A status: the request expired, or the consumer or its leader went away. Ask again at the next fetch.
            if message.subject.endswith(f".{self._last_request}"):
                self._credits = 0
            status = message.headers.get("Status", "")
            if status not in ("404", "408", "100"):
                self.request_errors_total += 1
                self._refused = True
        self._arrived.set()

    async def fetch(self, batch: int, *, wait_s: float) -> list[Delivery]:
        """Up to ``batch`` messages, as soon as there is one; none when ``wait_s`` (at most 5 s) passes without any."""
        deadline_s = self._clock.monotonic_s() + min(wait_s, WAIT_MAX_S)
        while not self._ready:
            now_s = self._clock.monotonic_s()
            if now_s >= deadline_s or not self._waits:
                return []
            if now_s >= self._expires_at_s:
                self._credits = 0
            if self._credits == 0 and self._client.is_connected and not self._refused:
                await self._request(batch, now_s=now_s)
            self._arrived.clear()
            if self._ready or not self._waits:
                continue
            pause_s = min(deadline_s, self._expires_at_s) - now_s if self._credits else PAUSE_S
            if not await is_set_within(self._arrived, timeout_s=max(pause_s, 0.001)):
                self._refused = False
        taken = [self._ready.popleft() for _ in range(min(batch, len(self._ready)))]
        return [Delivery(self._client, message) for message in taken]

    def ask_again(self) -> None:
        """Make the open request again: the connection is a new one."""
        self._credits = 0
        self._refused = False
        self._arrived.set()

    def end_waits(self) -> None:
        """Return from a fetch that waits, and from every later one, with what is there: the reader is draining."""
        self._waits = False
        self._arrived.set()

    async def _request(self, batch: int, *, now_s: float) -> None:
        self._last_request = next(self._requests)
        self._credits = batch
        self._expires_at_s = now_s + WAIT_MAX_S + EXPIRY_GRACE_S
        body = json.dumps({"batch": batch, "expires": int(WAIT_MAX_S * 1e9)}).encode()
        try:
            await self._client.send(self._next_subject, body, reply=f"{self._inbox}.{self._last_request}")
        except SEND_ERRORS:
            self._credits = 0

    async def close(self) -> None:
        """Stop receiving, and release messages that were delivered but never fetched, those on their way included."""
        if self._subscription is not None:
            # A lost connection ends the subscription too.
            with contextlib.suppress(*SEND_ERRORS, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._subscription.drain()
        while self._ready:
            await Delivery(self._client, self._ready.popleft()).nak()
