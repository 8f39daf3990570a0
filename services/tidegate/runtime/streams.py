"""Streams and durable consumers: created and updated by the bootstrap user, never destructively edited.

Everyone else waits for them and verifies their shape (``wire.permissions``).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec
import nats.js.errors
from nats.aio.client import Client
from nats.js import api

from tidegate.core.errors import CorruptionError, StaleFolderError, TidegateError, UnavailableError
from tidegate.runtime.client_tasks import SEND_ERRORS
from tidegate.runtime.clock import Clock
from tidegate.wire.subjects import ConsumerSpec, DurableName, StreamSpec

# JetStream error codes (server/errors.json): another client created it meanwhile.
STREAM_NAME_IN_USE = 10058
CONSUMER_EXISTS_CODES = frozenset({10013, 10148})
# The server cannot open the files of what it is to create.
STORE_FAILED_CODES = frozenset({10012, 10077})
RETRY_FOR_S = 30.0
RETRY_EVERY_S = 0.1
# Between two looks for a stream or a consumer that is not there yet.
WAIT_EVERY_S = 0.2
REQUEST_TIMEOUT_S = 5.0


class Stored(msgspec.Struct, frozen=True):
    """A message as stored in a stream."""

    data: bytes
    headers: dict[str, str]
    sequence: int


class StreamState(msgspec.Struct, frozen=True):
    """How full a stream is."""

    messages: int
    bytes: int
    last_sequence: int


class ConsumerState(msgspec.Struct, frozen=True):
    """Pending and unacknowledged messages of a durable consumer."""

    durable: str
    pending: int
    ack_pending: int
    redelivered: int


class Streams:
    """JetStream's management API in Tidegate's types."""

    def __init__(self, client: Client, clock: Clock) -> None:
        # The library's manager is only partly typed.
        self._manager = cast("Any", client).jsm(timeout=REQUEST_TIMEOUT_S)
        self._clock = clock

    async def await_stream(self, spec: StreamSpec, *, timeout_s: float) -> None:
        """Return once the stream is there.

        Raises:
            StaleFolderError: it exists with another retention, discard or subjects.
            UnavailableError: it was not created within ``timeout_s``, or JetStream did not answer.
        """
        current = await self._await(
            lambda: self._manager.stream_info(spec.name), what=f"Stream {spec.name}", timeout_s=timeout_s
        )
        _check_shape(current.config, spec)

    async def await_consumer(self, durable: DurableName, *, timeout_s: float) -> None:
        """Return once the durable consumer is there.

        Raises:
            UnavailableError: it was not created within ``timeout_s``, or JetStream did not answer.
        """
        await self._await(
            lambda: self._manager.consumer_info(durable.stream, durable.name),
            what=f"Consumer {durable.name}",
            timeout_s=timeout_s,
        )

    async def _await(self, ask: Callable[[], Awaitable[Any]], *, what: str, timeout_s: float) -> Any:
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            try:
                return await ask()
            except (*SEND_ERRORS, TimeoutError) as error:
                if self._clock.monotonic_s() >= deadline_s:
                    missing = isinstance(error, nats.js.errors.NotFoundError)
                    raise UnavailableError(
                        f"{what} is not there" if missing else f"{what} cannot be read from the broker",
                        why=f"no stream was created within {timeout_s:g} s" if missing else str(error),
                        fix="`tidegate up` creates it, in a cluster the Job `streams` of the release: see its log",
                    ) from error
            await asyncio.sleep(WAIT_EVERY_S)

    async def ensure_stream(self, spec: StreamSpec, *, copies: int) -> None:
        """Create the stream or verify its shape; limits, copies and subjects of older versions are updated in place.

        Raises:
            CorruptionError: the broker cannot open its files.
            StaleFolderError: it exists with another retention, discard or subjects.
            UnavailableError: JetStream did not answer in time.
        """
        await self._retry(lambda: self._ensure_stream(spec, copies=copies), what=f"Stream {spec.name}")

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Create the durable consumer or update it in place; the bound that admission sets live is kept.

        Raises:
            CorruptionError: the broker cannot open its files.
            UnavailableError: JetStream did not answer in time.
        """
        await self._retry(lambda: self._ensure_consumer(spec), what=f"Consumer {spec.durable.name}")

    async def _retry(self, attempt: Callable[[], Awaitable[None]], *, what: str) -> None:
        deadline_s = self._clock.monotonic_s() + RETRY_FOR_S
        while True:
            try:
                return await attempt()
            except (*SEND_ERRORS, TimeoutError) as error:
                # A broker that is starting answers 503 or not at all; waiting changes no other error.
                if isinstance(error, nats.js.errors.APIError) and error.code not in (None, 503):
                    if error.err_code in STORE_FAILED_CODES:
                        raise CorruptionError(
                            f"{what} cannot be created: {error.description}",
                            why="the broker's files are damaged, or its disk is full; its log says which",
                            fix="remove the broker's files (the folder `nats` of a run): messages on their way are"
                            " lost, and their tasks dropped as failed",
                        ) from error
                    raise TidegateError(f"{what} cannot be created", why=str(error)) from error
                if self._clock.monotonic_s() > deadline_s:
                    raise UnavailableError(f"{what} cannot be created", why=f"JetStream: {error}") from error
                await asyncio.sleep(RETRY_EVERY_S)

    async def _ensure_stream(self, spec: StreamSpec, *, copies: int) -> None:
        wanted = _stream_config(spec, copies=copies)
        try:
            current: api.StreamConfig = (await self._manager.stream_info(spec.name)).config
        except nats.js.errors.NotFoundError:
            try:
                await self._manager.add_stream(wanted)
            except nats.js.errors.BadRequestError as error:
                if error.err_code != STREAM_NAME_IN_USE:
                    raise
            return
        _check_shape(current, spec)
        if _updatable(current) != _updatable(wanted):
            await self._manager.update_stream(wanted)

    async def _ensure_consumer(self, spec: ConsumerSpec) -> None:
        stream, durable = spec.durable.stream, spec.durable.name
        try:
            current: api.ConsumerConfig = (await self._manager.consumer_info(stream, durable)).config
        except nats.js.errors.NotFoundError:
            wanted = api.ConsumerConfig(
                durable_name=durable,
                filter_subject=spec.filter_subject,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=spec.ack_wait_s,
                max_deliver=spec.max_deliver,
                max_ack_pending=spec.max_ack_pending,
                deliver_policy=api.DeliverPolicy.ALL,
                max_waiting=512,
            )
            try:
                await self._manager.add_consumer(stream, wanted)
            except nats.js.errors.APIError as error:
                if error.err_code not in CONSUMER_EXISTS_CODES:
                    raise
            return
        if (current.ack_wait, current.max_deliver) != (spec.ack_wait_s, spec.max_deliver):
            current.ack_wait, current.max_deliver = spec.ack_wait_s, spec.max_deliver
            await self._manager.add_consumer(stream, current)

    async def set_max_ack_pending(self, durable: DurableName, value: int) -> None:
        """Change how many unacknowledged messages a durable consumer allows.

        Raises:
            UnavailableError: JetStream did not answer, or the consumer is not there yet.
        """
        try:
            info = await self._manager.consumer_info(durable.stream, durable.name)
            config: api.ConsumerConfig = info.config
            if config.max_ack_pending != value:
                config.max_ack_pending = value
                await self._manager.add_consumer(durable.stream, config)
        except (*SEND_ERRORS, TimeoutError) as error:
            raise UnavailableError(f"Consumer {durable.name} cannot be changed", why=str(error)) from error

    async def state(self, stream: str) -> StreamState:
        """How full a stream is.

        Raises:
            UnavailableError: JetStream did not answer, or lost the stream.
        """
        state = (await self._ask(self._manager.stream_info(stream), what=f"Stream {stream}")).state
        return StreamState(messages=state.messages, bytes=state.bytes, last_sequence=state.last_seq)

    async def consumers(self, stream: str) -> list[ConsumerState]:
        """The durable consumers of a stream.

        Raises:
            UnavailableError: JetStream did not answer, or lost the stream.
        """
        found = await self._ask(self._manager.consumers_info(stream), what=f"Consumers of {stream}")
        return [
            ConsumerState(
                durable=each.name,
                pending=each.num_pending or 0,
                ack_pending=each.num_ack_pending or 0,
                redelivered=each.num_redelivered or 0,
            )
            for each in found
        ]

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject, None when there is none.

        Raises:
            UnavailableError: JetStream did not answer.
        """
        message = await self._ask(self._last_or_none(stream, subject), what=subject)
        if message is None:
            return None
        return Stored(
            data=message.data or b"", headers=dict(message.headers or {}), sequence=message.seq or 0
        )

    async def _last_or_none(self, stream: str, subject: str) -> Any:
        try:
            return await self._manager.get_last_msg(stream, subject)
        except nats.js.errors.NotFoundError:
            return None

    async def _ask(self, question: Awaitable[Any], *, what: str) -> Any:
        try:
            return await question
        except (*SEND_ERRORS, TimeoutError) as error:
            raise UnavailableError(f"{what} cannot be read from the broker", why=str(error)) from error


def _stream_config(spec: StreamSpec, *, copies: int) -> api.StreamConfig:
    work_queue = spec.retention == "work_queue"
    return api.StreamConfig(
        name=spec.name,
        subjects=list(spec.subjects),
        retention=api.RetentionPolicy.WORK_QUEUE if work_queue else api.RetentionPolicy.LIMITS,
        discard=api.DiscardPolicy.NEW if spec.discard == "new" else api.DiscardPolicy.OLD,
        max_bytes=spec.max_bytes,
        max_msgs=spec.max_messages or -1,
        max_msgs_per_subject=spec.max_messages_per_subject or -1,
        max_msg_size=spec.max_message_bytes,
        max_age=spec.max_age_s,
        duplicate_window=spec.duplicate_window_s,
        storage=api.StorageType.FILE,
        num_replicas=copies,
        # Its answers would be the stored bytes, at any subject that a request names (`wire.permissions`).
        allow_direct=False,
    )


def _check_shape(current: api.StreamConfig, spec: StreamSpec) -> None:
    """Refuse a stream that would lose messages if it became ``spec``."""
    wanted = _stream_config(spec, copies=1)
    if (
        current.retention != wanted.retention
        or current.discard != wanted.discard
        or sorted(current.subjects or []) not in (sorted(spec.subjects), _wider(spec.subjects))
    ):
        raise StaleFolderError(
            f"Stream {spec.name} exists with another shape",
            why=f"retention {current.retention}, discard {current.discard}, subjects {current.subjects}",
            fix="start a new run folder; changing it in place would lose messages",
        )


def _wider(subjects: Sequence[str]) -> list[str]:
    """The subjects that older versions gave a stream: whatever their last token."""
    return sorted(f"{subject.rpartition('.')[0]}.*" for subject in subjects)


def _updatable(config: api.StreamConfig) -> tuple[object, ...]:
    return (
        # Of streams of older versions: see ``_wider``.
        sorted(config.subjects or []),
        # Of streams that were created with it: see `wire.permissions`.
        config.allow_direct,
        config.max_bytes,
        config.max_msgs,
        config.max_msgs_per_subject,
        config.max_msg_size,
        config.num_replicas,
    )
