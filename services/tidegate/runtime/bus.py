"""The bus: NATS JetStream with the handling that its traits require.

The traits, each with a test: a full stream is backpressure and not an error (retry with the same id); a
publish that timed out is *unknown*, so it is repeated with the same id until it is acknowledged; an oversized message
would close the client for good, so sizes are checked before sending; a pull that was pending over a broker restart
never ends by itself, so every pull expires within five seconds.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tidegate.core.errors import (
    BackpressureError,
    ConflictError,
    PayloadTooLargeError,
    TidegateError,
    UnavailableError,
)
from tidegate.runtime.broker_client import BrokerClient
from tidegate.runtime.broker_password import BrokerPassword
from tidegate.runtime.bus_failures import BusFailures
from tidegate.runtime.client_tasks import SEND_ERRORS, ended_task
from tidegate.runtime.clock import Clock
from tidegate.runtime.consumer import Consumer
from tidegate.runtime.process_random import GENERATOR
from tidegate.runtime.races import ended_within
from tidegate.runtime.replies import Replies
from tidegate.runtime.retrying import Backoff, FailedAttempt, retry
from tidegate.runtime.streams import ConsumerState, Stored, Streams, StreamState
from tidegate.runtime.subscribing import subscribe
from tidegate.runtime.tls import broker_identity
from tidegate.wire.subjects import (
    HEADER_EXPECTED_LAST_SUBJECT_SEQUENCE,
    HEADER_MESSAGE_ID,
    HEADER_REASON,
    HEADER_SOURCE,
    MESSAGE_BYTES_MAX,
    ConsumerSpec,
    DurableName,
    StreamSpec,
    Topology,
)

Headers = dict[str, str]
Handler = Callable[[bytes, Headers], Awaitable[None]]

# JetStream error codes (server/errors.json): the limits of a stream with discard new, and a lost compare-and-set.
STREAM_FULL_CODES = frozenset({10077, 10047, 10023})
# How the broker describes the limit of one stream; all else of these codes is its volume.
STREAM_LIMIT = "maximum "
WRONG_LAST_SEQUENCE_CODES = frozenset({10071, 10164})
# One attempt; shorter than a broker restart so that the retry follows the reconnect closely.
ATTEMPT_TIMEOUT_S = 2.0
BACKOFF = Backoff(start_s=0.03, max_s=1.0)
CONNECT_TIMEOUT_S = 30.0
# Longer than the client's own limits of one connection.
CONNECT_ATTEMPT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
FLUSH_TIMEOUT_S = 1.0
# Headers of a refused message that are kept: the ids of a large group. A stream takes 64 KiB, with the reason.
QUARANTINE_HEADER_BYTES_MAX = 48 * 1024
# Streams are there before their consumers, so this is the time between the two, on a slow machine.
CONSUMER_TIMEOUT_S = 60.0


class Published(msgspec.Struct, frozen=True):
    """An acknowledged publish. ``duplicate``: the stream already held this message id."""

    sequence: int
    duplicate: bool


class _Problem(msgspec.Struct, frozen=True):
    """JetStream's reason for refusing a message."""

    code: int = 500
    err_code: int = 0
    description: str = ""


class _PublishAnswer(msgspec.Struct, frozen=True):
    """JetStream's answer to a publish."""

    seq: int = 0
    duplicate: bool = False
    error: _Problem | None = None


_read_answer = msgspec.json.Decoder(_PublishAnswer).decode


async def _end(client: Client) -> None:
    """Close a client, whatever became of its connection."""
    # A connection whose TLS handshake was given up never closes, and the library waits for it (CPython,
    # `StreamWriter.wait_closed`). What waited for a reconnect it still writes into the lost connection, and uvloop
    # raises a RuntimeError.
    with contextlib.suppress(TimeoutError, OSError, RuntimeError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await client.close()


async def _connected(
    begin: Callable[[BrokerClient], Coroutine[Any, Any, None]], *, url: str, clock: Clock, timeout_s: float
) -> BrokerClient:
    """A client that ``begin`` connected, at one of its attempts.

    Raises:
        UnavailableError: no broker answered within ``timeout_s``.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    while True:
        client = BrokerClient()
        try:
            # The client retries by itself, but after a failed TLS handshake it waits without end: a new one continues.
            left_s = deadline_s - clock.monotonic_s()
            await ended_within(begin(client), timeout_s=min(CONNECT_ATTEMPT_TIMEOUT_S, left_s))
        except (OSError, nats.errors.Error, TimeoutError) as error:
            await _end(client)
            if clock.monotonic_s() >= deadline_s:
                raise UnavailableError(
                    f"No broker answers at {url} within {timeout_s:g} s",
                    why=str(client.last_error or error),
                    fix="start nats-server, or correct broker_url",
                ) from error
            await asyncio.sleep(0.1 + 0.1 * GENERATOR.random())
        else:
            return client


class Bus:
    """One connection of one process. Create it with ``Bus.connect``; ``close`` ends its subscriptions."""

    def __init__(
        self,
        client: BrokerClient,
        topology: Topology,
        clock: Clock,
        *,
        failures: BusFailures | None = None,
        ended_task: Callable[[], str] = lambda: "",
    ) -> None:
        """Wrap a connected client; use ``connect``.

        ``failures``: of its connection so far. ``ended_task``: what the client does not do any more.
        """
        self._client = client
        self._ended_task = ended_task
        # Refusals of the broker and messages at which the code of this process raised.
        self.failures = failures or BusFailures()
        self._replies = Replies(client, self.failures)
        self._streams = Streams(client, clock)
        self._topology = topology
        self._clock = clock
        self.reconnects = 0
        self.backpressure_total = 0
        self.retries_total = 0
        self._on_reconnect: list[Callable[[], None]] = []
        # One for each loop that reads a stream; they live as long as the bus.
        self._consumers: list[Consumer] = []

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str,
        topology: Topology,
        clock: Clock,
        user: str = "",
        password: str | BrokerPassword = "",
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> "Bus":
        """Connect, as a user with a password or without either, waiting for a broker that is still starting.

        ``password``: one that may be rotated is read again for each attempt to connect.

        With TLS where the environment names a folder with this process' certificate (``runtime.tls``).

        Raises:
            ConfigError: the certificate cannot be read.
            UnavailableError: no broker answered within ``timeout_s``.
        """
        bus: Bus | None = None
        client: BrokerClient | None = None
        identity = broker_identity()

        async def renew_identity() -> None:
            """A certificate that was renewed meanwhile is for the next handshake."""
            if identity is not None and client is not None:
                identity.renew()
                client.options["tls"] = identity.context  # read for each handshake

        async def on_reconnect() -> None:
            if bus is not None:
                bus.note_reconnect()

        async def on_error(error: Exception) -> None:
            """The client retries by itself, each caller sees its own failure; a refusal leaves no other trace."""
            await renew_identity()
            if failures.note_error(error) == "connect":
                current.refuse()

        failures = BusFailures(name=name, user=user)
        current = password if isinstance(password, BrokerPassword) else BrokerPassword(lambda: (password,))

        def begin(opened: BrokerClient) -> Coroutine[Any, Any, None]:
            nonlocal client
            client = opened
            # Seconds; the library annotates int, and its code accepts any number.
            reconnect_wait = cast("int", 0.1 + 0.1 * GENERATOR.random())
            return client.connect(
                servers=[url],
                user=user or None,
                password=current.current if password else None,
                # A user receives only its own answers: permissions name its own inbox.
                inbox_prefix=f"_INBOX_{user}" if user else "_INBOX",
                name=name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=reconnect_wait,
                connect_timeout=2,
                ping_interval=5,
                allow_reconnect=True,
                disconnected_cb=renew_identity,
                reconnected_cb=on_reconnect,
                tls=identity.context if identity is not None else None,
                error_cb=on_error,
            )

        client = await _connected(begin, url=url, clock=clock, timeout_s=timeout_s)
        bus = cls(client, topology, clock, failures=failures, ended_task=partial(ended_task, client))
        return bus

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable right now."""
        return bool(self._client.is_connected)

    def check(self) -> None:
        """Raise once the client can never work again, which only a new process mends.

        Raises:
            UnavailableError: one of its tasks has ended.
        """
        if ended := self._ended_task():
            raise UnavailableError(
                f"This process can no longer {ended}",
                why="a task of its client ended by an unexpected error, for example for want of memory",
                fix="its next process connects again",
            )

    def note_reconnect(self) -> None:
        """Count a reconnect, let consumers ask again, and notify those who follow state by subscription."""
        self.reconnects += 1
        for consumer in self._consumers:
            consumer.ask_again()
        for callback in self._on_reconnect:
            callback()

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after every reconnect; subscriptions live as long as the bus."""
        self._on_reconnect.append(callback)

    async def close(self) -> None:
        """Flush what was sent and end the connection."""
        # Without a broker there is nothing to flush to; unacknowledged work is redelivered.
        with contextlib.suppress(TimeoutError, *SEND_ERRORS):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._client.flush()
        await _end(self._client)

    # -- streams ---------------------------------------------------------------------------------------------------

    async def bootstrap(
        self,
        streams: Sequence[StreamSpec],
        *,
        consumers: Sequence[ConsumerSpec] = (),
        copies: int = 1,
    ) -> None:
        """Create or update every stream and its consumer, as the one user that may (``wire.permissions``).

        ``copies``: servers of the broker that keep each message. Repeating it changes nothing.

        Raises:
            StaleFolderError: a stream exists with a shape that would lose messages to change.
            UnavailableError: JetStream did not answer in time.
        """
        for stream in streams:
            await self._streams.ensure_stream(stream, copies=copies)
        for consumer in consumers:
            await self._streams.ensure_consumer(consumer)

    async def await_streams(self, specs: Sequence[StreamSpec], *, timeout_s: float) -> None:
        """Return once every stream is there in its shape; ``bootstrap`` creates them.

        Raises:
            StaleFolderError: a stream exists with another shape.
            UnavailableError: one was not created within ``timeout_s``, or JetStream did not answer.
        """
        for spec in specs:
            await self._streams.await_stream(spec, timeout_s=timeout_s)

    async def stream_state(self, stream: str) -> StreamState:
        """How full a stream is.

        Raises:
            UnavailableError: JetStream did not answer.
        """
        return await self._streams.state(stream)

    async def consumers(self, stream: str) -> list[ConsumerState]:
        """Pending and unacknowledged messages of the durable consumers of a stream.

        Raises:
            UnavailableError: JetStream did not answer.
        """
        return await self._streams.consumers(stream)

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject, None when there is none.

        Raises:
            UnavailableError: JetStream did not answer.
        """
        return await self._streams.last(stream, subject)

    async def consumer(self, durable: DurableName, *, timeout_s: float = CONSUMER_TIMEOUT_S) -> Consumer:
        """A reader of a durable pull consumer, which ``bootstrap`` creates.

        Raises:
            UnavailableError: it was not created within ``timeout_s``, or JetStream did not answer.
        """
        await self._streams.await_consumer(durable, timeout_s=timeout_s)
        consumer = await Consumer.open(self._client, durable, self._clock, self.failures)
        self._consumers.append(consumer)
        return consumer

    def end_waits(self) -> None:
        """Let no consumer wait for messages any longer: the service is draining."""
        for consumer in self._consumers:
            consumer.end_waits()

    async def set_max_ack_pending(self, durable: DurableName, value: int) -> None:
        """Change how many unacknowledged messages a durable consumer allows.

        Raises:
            UnavailableError: JetStream did not answer, or the consumer is not there yet.
        """
        await self._streams.set_max_ack_pending(durable, value)

    # -- sending ---------------------------------------------------------------------------------------------------

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str,
        headers: Mapping[str, str] | None = None,
        deadline_s: float = 30.0,
        expected_last_sequence: int | None = None,
    ) -> Published:
        """Publish into a stream and return once it is stored; repeats with the same id until then.

        Raises:
            PayloadTooLargeError: body and headers exceed what a message may hold; nothing was sent.
            BackpressureError: the stream stayed full until the deadline.
            ConflictError: the subject moved past ``expected_last_sequence``.
            UnavailableError: no acknowledgement came in time; whether it was stored is unknown.
        """
        all_headers: Headers = {**(headers or {}), HEADER_MESSAGE_ID: message_id}
        if expected_last_sequence is not None:
            all_headers[HEADER_EXPECTED_LAST_SUBJECT_SEQUENCE] = str(expected_last_sequence)
        size = len(data) + sum([len(key) + len(value) + 4 for key, value in all_headers.items()])
        if size > MESSAGE_BYTES_MAX:
            raise PayloadTooLargeError(
                f"A message of {size} bytes for {subject} exceeds {MESSAGE_BYTES_MAX}",
                fix="upload the payload to the trajectory store and send its reference",
            )
        started_at_s = self._clock.monotonic_s()
        try:
            return await self._attempt(subject, data, all_headers)
        except TidegateError as error:
            failure = error
        return await retry(
            lambda: self._attempt(subject, data, all_headers),
            BACKOFF,
            deadline_s=deadline_s - (self._clock.monotonic_s() - started_at_s),
            on_retry=self._count_retry,
            after=failure,
        )

    def _count_retry(self, _failed: FailedAttempt) -> None:
        self.retries_total += 1

    async def _attempt(self, subject: str, data: bytes, headers: Headers) -> Published:
        try:
            answer = _read_answer(
                await self._replies.request(subject, data, headers=headers, timeout_s=ATTEMPT_TIMEOUT_S)
            )
        except (*SEND_ERRORS, TimeoutError, msgspec.DecodeError) as error:
            raise UnavailableError(
                f"The broker did not acknowledge a message for {subject}",
                why=str(error) or f"no answer within {ATTEMPT_TIMEOUT_S:g} s",
                fix="see that the broker runs and that its volume has space",
            ) from error
        problem = answer.error
        if problem is None:
            return Published(sequence=answer.seq, duplicate=answer.duplicate)
        if problem.err_code in STREAM_FULL_CODES:
            self.backpressure_total += 1
            raise BackpressureError(
                f"The broker has no space for a message for {subject}",
                why=problem.description,
                fix="its reader is behind; `tidegate explain` names it"
                if problem.description.startswith(STREAM_LIMIT)
                else "free space on the broker's volume, or give it a larger one",
            )
        if problem.err_code in WRONG_LAST_SEQUENCE_CODES:
            raise ConflictError(f"{subject} moved on while a message was prepared", why=problem.description)
        if problem.code >= 500:
            raise UnavailableError(f"The broker refused a message for {subject}", why=str(problem))
        raise TidegateError(f"The broker refused a message for {subject}", why=str(problem))

    async def publish_core(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Fire and forget, outside of any stream; lost when the broker is away."""
        if not self.connected:
            return
        # These messages are whole snapshots: the next one replaces a lost one.
        with contextlib.suppress(*SEND_ERRORS):
            await self._client.publish(subject, data, headers=dict[str, Any](headers) if headers else None)

    async def quarantine(
        self, source: str, data: bytes, *, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Keep a refused message for inspection, with the service that refused it and the reason.

        What exceeds a message is left out: its sender may have sent more than the bus does.
        """
        kept: Headers = {}
        room = QUARANTINE_HEADER_BYTES_MAX
        for key, value in (headers or {}).items():
            room -= len(key) + len(value) + 4
            if key.startswith("Nats-") or room < 0:
                continue
            kept[key] = value
        kept[HEADER_REASON] = reason.replace("\n", " ")[:1024]
        kept[HEADER_SOURCE] = source
        body = data[: MESSAGE_BYTES_MAX - QUARANTINE_HEADER_BYTES_MAX - 16 * 1024]
        await self.publish(
            self._topology.quarantine(source),
            body,
            message_id=f"{source}-{GENERATOR.getrandbits(64):x}",
            headers=kept,
        )

    async def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Publish an event for operators; kept in EVENTS."""
        body = msgspec.json.encode({"kind": kind, "at_s": self._clock.now_s(), **fields})
        await self.publish(
            self._topology.event(kind),
            body,
            message_id=f"{kind}-{GENERATOR.getrandbits(64):x}",
            deadline_s=5.0,
        )

    # -- receiving -------------------------------------------------------------------------------------------------

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Follow a core subject (also sees what is published into streams); ends with the bus."""

        async def receive(message: Msg) -> None:
            await handler(message.data, dict(message.headers or {}))

        await subscribe(self._client, subject, receive, self.failures)
