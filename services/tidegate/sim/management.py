"""JetStream's management API as nats-py names it, on a simulated broker."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec
import nats.js.errors
from nats.js import api

from tidegate.runtime.broker_client import BrokerClient
from tidegate.runtime.streams import REQUEST_TIMEOUT_S
from tidegate.sim.broker import SimulatedBroker
from tidegate.sim.streams import Headers, StreamLimits

T = TypeVar("T")


class _StreamFill(msgspec.Struct, frozen=True):
    messages: int
    bytes: int
    last_seq: int


class _StreamInfo(msgspec.Struct, frozen=True):
    config: Any
    state: _StreamFill


class _ConsumerInfo(msgspec.Struct, frozen=True):
    config: Any


class _RawMessage(msgspec.Struct, frozen=True):
    data: bytes
    headers: Headers
    seq: int


class BootstrapClient:
    """A client beside the broker: its requests are executed at once, whatever the network does."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker

    def as_client(self) -> BrokerClient:
        """For code that is typed for the real one."""
        return cast("BrokerClient", self)

    def jsm(self, **_options: float) -> "Manager":
        """JetStream's management."""
        return Manager(self._broker, _at_once, delay_s=lambda _subject: 0.0)

    def new_inbox(self) -> str:
        """A subject of its own."""
        return "_INBOX.bootstrap"


async def _at_once(act: Callable[[], T], *, timeout_s: float, extra_s: float = 0.0) -> T:
    del timeout_s, extra_s
    return act()


class Manager:
    """JetStream's management API, with nats-py's names."""

    def __init__(
        self, broker: SimulatedBroker, ask: Callable[..., Awaitable[Any]], *, delay_s: Callable[[str], float]
    ) -> None:
        """``ask`` executes a function at ``broker`` and returns its result; ``delay_s``: added to it, by subject."""
        self._broker = broker
        self._ask = ask
        self._delay_s = delay_s

    async def stream_info(self, name: str) -> _StreamInfo:
        """A stream's config and fill."""

        def read() -> _StreamInfo:
            stream = self._broker.streams.get(name)
            if stream is None:
                raise _not_found("stream not found", 10059)
            state = _StreamFill(len(stream.messages), stream.num_bytes, stream.last_sequence)
            return _StreamInfo(self._broker.configs[name], state)

        return await self._ask(read, timeout_s=REQUEST_TIMEOUT_S)

    async def add_stream(self, config: api.StreamConfig) -> None:
        """Create a stream."""

        def add() -> None:
            name = config.name or ""
            if name in self._broker.streams:
                return
            self._broker.configs[name] = config
            self._broker.add_stream(_limits_of(config))

        await self._ask(add, timeout_s=REQUEST_TIMEOUT_S)

    async def consumer_info(self, stream: str, durable: str) -> _ConsumerInfo:
        """A durable consumer's config."""

        def read() -> _ConsumerInfo:
            if (stream, durable) not in self._broker.durables:
                raise _not_found("consumer not found", 10014)
            return _ConsumerInfo(self._broker.configs[f"{stream}/{durable}"])

        return await self._ask(read, timeout_s=REQUEST_TIMEOUT_S)

    async def add_consumer(self, stream: str, config: api.ConsumerConfig) -> None:
        """Create a durable consumer or change it."""

        def add() -> None:
            name = config.durable_name or ""
            self._broker.configs[f"{stream}/{name}"] = config
            self._broker.add_durable(
                stream,
                name,
                ack_wait_s=config.ack_wait or 30.0,
                max_deliver=config.max_deliver or -1,
                max_ack_pending=config.max_ack_pending or 1,
            )

        await self._ask(add, timeout_s=REQUEST_TIMEOUT_S)

    async def get_last_msg(self, stream: str, subject: str) -> _RawMessage:
        """The newest message of a subject."""

        def read() -> _RawMessage:
            stored = self._broker.streams.get(stream)
            message = stored.last(subject) if stored else None
            if message is None:
                raise _not_found("no message found", 10037)
            return _RawMessage(message.data, message.headers, message.sequence)

        return await self._ask(read, timeout_s=REQUEST_TIMEOUT_S, extra_s=self._delay_s(subject))


def _limits_of(config: api.StreamConfig) -> StreamLimits:
    return StreamLimits(
        name=config.name or "",
        subjects=tuple(config.subjects or ()),
        work_queue=config.retention == api.RetentionPolicy.WORK_QUEUE,
        discard_new=config.discard == api.DiscardPolicy.NEW,
        max_bytes=max(0, config.max_bytes or 0),
        max_messages=max(0, config.max_msgs or 0),
        max_messages_per_subject=max(0, config.max_msgs_per_subject or 0),
        duplicate_window_s=config.duplicate_window or 120.0,
    )


def _not_found(description: str, code: int) -> nats.js.errors.NotFoundError:
    return nats.js.errors.NotFoundError(code=404, err_code=code, description=description)
