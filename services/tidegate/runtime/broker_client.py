"""The broker's client: nats-py's, with less CPU for each message, and a password that may be rotated.

The library keeps a queue and a task for each subscription, reads headers letter by letter, copies each message into
one command, and takes 32 KiB at once from its socket. Here a subscription that ``follow`` made passes a message on as
soon as it was read, ``send`` and ``answer`` write what is there, and the socket is read as far as it goes
(docs/benchmarks.md has the figures). All else is the library's: connection, protocol, TLS, reconnects, other
subscriptions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import ParseResult

import msgspec
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import (
    AuthorizationError,
    BadSubjectError,
    ConnectionClosedError,
    ConnectionDrainingError,
    MaxPayloadError,
    OutboundBufferLimitError,
)

from tidegate.runtime.bus_failures import BusFailures
from tidegate.runtime.message_parser import MessageParser

# The broker's error, in lower case, as the library compares it.
_NO_USER = "authorization violation"
# How headers begin that no status of the broker's precedes.
_NO_STATUS = b"NATS/1.0\r\n"
# What uvloop takes from a socket at once. The reader pauses the connection at twice as much.
READ_BYTES_MAX = 256 * 1024


class Received(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A message as it came. ``headers``: its status, if it has one, is "Status"."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str]


Receive = Callable[[Received], None]


class _WideTransport(TcpTransport):
    """The library's TCP transport, which reads more at once."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        await cast("Any", super()).connect(uri, max(buffer_size, READ_BYTES_MAX), connect_timeout)

    async def read(self, buffer_size: int) -> bytes:
        return await super().read(max(buffer_size, READ_BYTES_MAX))

    def __bool__(self) -> bool:
        return True  # the library replaces a transport that is false, as its own are before they connect


class BrokerClient(Client):
    """One connection.

    A password that the broker no longer knows is a lost connection. The library closes such a client for good: after a
    rotation, every service would have to be started again. Its subscriptions and its inbox stay, and the next attempt
    to connect sends the password of that moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self._transport = _WideTransport()
        self._ps = MessageParser(self)
        # By subscription: a handful, for as long as the client lives.
        self._followed: dict[int, tuple[Receive, BusFailures]] = {}

    async def follow(self, subject: str, receive: Receive, failures: BusFailures) -> Subscription:
        """Pass each message of a subject to ``receive``, in order, until it is unsubscribed.

        ``receive`` runs while the connection is read: it puts the message somewhere bounded, and returns. A message at
        which it raises is lost, and the next one is passed: a defect of the service, which goes to ``failures``.
        """
        sid = self._sid + 1  # which the library takes next; messages may arrive before it returns
        self._followed[sid] = (receive, failures)
        try:
            return await cast("Any", self).subscribe(subject)
        except BaseException:
            del self._followed[sid]
            raise

    async def send(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish, ``data`` without a copy.

        Raises:
            NatsError: the connection is closed, there is none and what waits for one is full, ``data`` exceeds what
                the broker takes, or ``subject`` is none.
        """
        if subject.split() != [subject]:
            raise BadSubjectError
        size = len(data)
        if headers:
            block = _header_block(headers)
            begin = f"HPUB {subject} {reply} {len(block)} {len(block) + size}\r\n".encode() + block
        else:
            begin = f"PUB {subject} {reply} {size}\r\n".encode()
        await self._write([begin, data, b"\r\n"], num_messages=1, size=size)

    async def answer(self, replies: Sequence[str], body: bytes) -> None:
        """Publish ``body`` to each of these subjects, which the broker named, as one command.

        Raises:
            NatsError: as ``send``.
        """
        text, size = body.decode("ascii"), len(body)
        command = "".join([f"PUB {reply} {size}\r\n{text}\r\n" for reply in replies]).encode()
        await self._write([command], num_messages=len(replies), size=size * len(replies))

    async def _write(self, parts: list[bytes], *, num_messages: int, size: int) -> None:
        if self.is_closed:
            raise ConnectionClosedError
        if self.is_draining_pubs:
            raise ConnectionDrainingError
        if size > num_messages * self._max_payload:
            raise MaxPayloadError
        if not self.is_connected and size + self._pending_data_size > self._max_pending_size:
            raise OutboundBufferLimitError
        self.stats["out_msgs"] += num_messages
        self.stats["out_bytes"] += size
        self._pending += parts
        self._pending_data_size += sum(map(len, parts))
        is_full = self._pending_data_size > self._max_pending_size
        if is_full or (self._flush_queue is not None and self._flush_queue.empty()):
            await cast("Any", self)._flush_pending(force_flush=is_full)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        library = cast("Any", super())
        # The broker takes any bytes as a subject; the library's reader ends for good by one that is no text.
        name, answers_to = subject.decode(errors="replace"), reply.decode(errors="replace")
        followed = self._followed.get(sid)
        if followed is None or sid not in self._subs:
            await library._process_msg(sid, name.encode(), answers_to.encode(), data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        receive, failures = followed
        fields: dict[str, str] = {}
        if headers is not None and headers.startswith(_NO_STATUS):
            fields = _header_fields(headers)
        elif headers is not None:
            fields = await library._process_headers(headers) or {}
        try:
            receive(Received(name, answers_to, data, fields))
        except Exception as error:
            failures.note_message(name, error)

    async def _process_err(self, err_msg: str) -> None:
        if _NO_USER in err_msg.lower() and self.is_connected:
            await cast("Any", super())._process_op_err(AuthorizationError())
            return
        await cast("Any", super())._process_err(err_msg)


def _header_block(headers: Mapping[str, str]) -> bytes:
    """Headers as they travel. A line break in one, which would begin another, becomes a space."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not lines.count("\r") == lines.count("\n") == len(headers):
        lines = "".join([f"{_in_line(name)}: {_in_line(value)}\r\n" for name, value in headers.items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _header_fields(block: bytes) -> dict[str, str]:
    """What ``_header_block`` wrote."""
    fields: dict[str, str] = {}
    for line in block.decode(errors="replace").split("\r\n"):
        name, separator, value = line.partition(":")
        if separator:
            fields[name.strip()] = value.strip()
    return fields


def _in_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
