"""The broker of a simulated cluster: routes messages between connections and keeps the streams' books.

What it holds survives its death, as files do; what it was about to do does not: pulls, deliveries on their way, and
subscriptions until their connections are back.
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tidegate.sim.network import Network
from tidegate.sim.streams import Durable, Headers, Refused, StoredMessage, Stream, StreamLimits, Taken
from tidegate.wire.subjects import HEADER_EXPECTED_LAST_SUBJECT_SEQUENCE, HEADER_MESSAGE_ID

NAME = "broker"
ACK_PREFIX = "$JS.ACK."
PULL_PREFIX = "$JS.API.CONSUMER.MSG.NEXT."
# As `max_waiting` of the consumers that `runtime.streams` makes.
PULLS_MAX = 512
RECONNECT_S = (0.1, 0.3)


class Peer(Protocol):
    """A connection as the broker sees it."""

    @property
    def name(self) -> str:
        """Of its process."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its process lives."""
        ...

    def arrived(self, subject: str, data: bytes, headers: Headers, reply: str) -> None:
        """A message for one of its subscriptions."""
        ...

    def matches(self, subject: str) -> bool:
        """Whether it subscribed to a subject."""
        ...

    def delay_s(self, subject: str) -> float:
        """How much longer messages of a subject take to it than the network's weather has it."""
        ...

    def lost(self) -> None:
        """The broker went away."""
        ...

    def reconnected(self) -> None:
        """It is back."""
        ...


class _Pull(msgspec.Struct):
    peer: Peer
    inbox: str
    left: int


class Broker:
    """One server with file storage."""

    def __init__(
        self, network: Network, rng: random.Random, *, work_queue_messages_max: int, ack_wait_max_s: float
    ) -> None:
        """No streams yet. ``rng`` decides when connections find it again.

        Work queues hold at most ``work_queue_messages_max`` messages, as on a small disk. Nobody is waited for longer
        than ``ack_wait_max_s``, so that a short run sees what a long one would.
        """
        self.up = True
        self.streams: dict[str, Stream] = {}
        self.durables: dict[tuple[str, str], Durable] = {}
        # What streams and consumers were made with, in the client library's own types.
        self.configs: dict[str, Any] = {}
        self.on_stored: Callable[[Stream, StoredMessage], object] = lambda _stream, _message: None
        self.max_pulls_seen = 0
        self._network = network
        self._rng = rng
        self._work_queue_messages_max = work_queue_messages_max
        self._ack_wait_max_s = ack_wait_max_s
        self._peers: list[Peer] = []
        self._stream_of: dict[str, str] = {}
        self._pulls: dict[tuple[str, str], deque[_Pull]] = {}
        self._clock = asyncio.get_running_loop().time

    # -- life ------------------------------------------------------------------------------------------------------

    def connect(self, peer: Peer) -> None:
        """A process opened its connection; those of dead ones are forgotten."""
        self._peers = [*(other for other in self._peers if other.alive), peer]

    def kill(self) -> None:
        """The server dies."""
        self.up = False
        for peer in self._peers:
            peer.lost()
        for pulls in self._pulls.values():
            pulls.clear()

    def restart(self) -> None:
        """It is back with what its files hold; connections find it one by one."""
        self.up = True
        for stream in self.streams.values():
            stream.restart(now_s=self._clock())
        for durable in self.durables.values():
            for sequence in durable.outstanding:
                self._watch(durable, sequence, durable.extend(sequence))
        for peer in self._peers:
            delay_s = self._rng.uniform(*RECONNECT_S)
            asyncio.get_running_loop().call_later(delay_s, peer.reconnected)

    # -- management ------------------------------------------------------------------------------------------------

    def add_stream(self, limits: StreamLimits) -> None:
        """Create a stream."""
        if limits.work_queue:
            most = self._work_queue_messages_max
            limits = msgspec.structs.replace(limits, max_messages=min(limits.max_messages or most, most))
        self.streams[limits.name] = Stream(limits)
        for subject in limits.subjects:
            self._stream_of[subject.rpartition(".")[0]] = limits.name

    def add_durable(
        self, stream: str, name: str, *, ack_wait_s: float, max_deliver: int, max_ack_pending: int
    ) -> None:
        """Create a durable consumer, or change how much its readers may hold."""
        known = self.durables.get((stream, name))
        if known is not None:
            known.max_ack_pending = max_ack_pending
            self._dispatch((stream, name))
            return
        self.durables[stream, name] = Durable(
            self.streams[stream],
            name=name,
            ack_wait_s=min(ack_wait_s, self._ack_wait_max_s),
            max_deliver=max_deliver,
            max_ack_pending=max_ack_pending,
        )
        self._pulls[stream, name] = deque()

    # -- messages --------------------------------------------------------------------------------------------------

    def publish(self, peer: Peer, subject: str, data: bytes, headers: Headers, reply: str) -> None:
        """A message arrives; the stream it goes into acknowledges it under ``reply``, if there is one."""
        if subject.startswith(ACK_PREFIX):
            self._answered(subject, data)
            return
        if subject.startswith(PULL_PREFIX):
            self._pulled(peer, subject, data, reply)
            return
        stream_name = self._stream_of.get(subject.rpartition(".")[0])
        answer = (
            None if stream_name is None else self._store(self.streams[stream_name], subject, data, headers)
        )
        if not isinstance(answer, Refused):
            for other in self._peers:
                if other.alive and other.matches(subject):
                    self._send(other, subject, data, headers)
        if answer is None or stream_name is None:
            return
        if isinstance(answer, Refused):
            code = 503 if self.streams[stream_name].limits.discard_new else 400
            said: dict[str, Any] = {
                "error": {"code": code, "err_code": answer.code, "description": answer.description}
            }
        else:
            self._dispatch_all(stream_name)
            said = {"stream": stream_name, "seq": answer.sequence, "duplicate": answer.duplicate}
        if reply:
            self._send(peer, reply, json.dumps(said).encode(), {})

    def _store(self, stream: Stream, subject: str, data: bytes, headers: Headers) -> Taken | Refused:
        expected = headers.get(HEADER_EXPECTED_LAST_SUBJECT_SEQUENCE)
        answer = stream.put(
            subject,
            data,
            headers,
            message_id=headers.get(HEADER_MESSAGE_ID, ""),
            expected=None if expected is None else int(expected),
            now_s=self._clock(),
        )
        if isinstance(answer, Taken) and not answer.duplicate:
            self.on_stored(stream, stream.messages[answer.sequence])
        return answer

    def _send(
        self, peer: Peer, subject: str, data: bytes, headers: Headers, *, to: str = "", reply: str = ""
    ) -> None:
        """Hand a message to a connection, under ``to`` if that is not its subject."""
        self._network.send(
            lambda: peer.arrived(to or subject, data, headers, reply),
            between=(NAME, peer.name),
            extra_s=peer.delay_s(subject),
        )

    # -- pulls -----------------------------------------------------------------------------------------------------

    def _pulled(self, peer: Peer, subject: str, data: bytes, inbox: str) -> None:
        stream, _, durable = subject.removeprefix(PULL_PREFIX).partition(".")
        request = json.loads(data)
        pulls = self._pulls.get((stream, durable))
        if pulls is None or len(pulls) >= PULLS_MAX:
            self._send(peer, inbox, b"", {"Status": "409"})
            return
        pull = _Pull(peer=peer, inbox=inbox, left=int(request["batch"]))
        pulls.append(pull)
        self.max_pulls_seen = max(self.max_pulls_seen, len(pulls))
        asyncio.get_running_loop().call_later(request["expires"] / 1e9, lambda: self._expired(pulls, pull))
        self._dispatch((stream, durable))

    def _expired(self, pulls: deque[_Pull], pull: _Pull) -> None:
        if pull in pulls:
            pulls.remove(pull)
            self._send(pull.peer, pull.inbox, b"", {"Status": "408"})

    def _dispatch_all(self, stream: str) -> None:
        for key in self.durables:
            if key[0] == stream:
                self._dispatch(key)

    def _dispatch(self, key: tuple[str, str]) -> None:
        """Deliver what can be delivered, one message a reader and turn, as a work queue shares itself out."""
        if not self.up:
            return
        durable, pulls = self.durables[key], self._pulls[key]
        while pulls:
            if not pulls[0].peer.alive:
                pulls.popleft()
                continue
            taken = durable.take()
            if taken is None:
                return
            message, count, token = taken
            pull = pulls.popleft()
            pull.left -= 1
            if pull.left:
                pulls.append(pull)
            self._watch(durable, message.sequence, token)
            reply = f"{ACK_PREFIX}{key[0]}.{key[1]}.{count}.{message.sequence}.{token}.0.0"
            self._send(pull.peer, message.subject, message.data, message.headers, to=pull.inbox, reply=reply)

    def _watch(self, durable: Durable, sequence: int, token: int | None) -> None:
        asyncio.get_running_loop().call_later(
            durable.ack_wait_s, lambda: self._overdue(durable, sequence, token)
        )

    def _overdue(self, durable: Durable, sequence: int, token: int | None) -> None:
        if self.up and durable.hand_on(sequence, token=token):
            self._dispatch((durable.stream.limits.name, durable.name))

    def _answered(self, subject: str, body: bytes) -> None:
        _, _, stream, name, _, sequence_text, *_ = subject.split(".")
        durable, sequence = self.durables[stream, name], int(sequence_text)
        if body == b"+WPI":
            token = durable.extend(sequence)
            if token is not None:
                self._watch(durable, sequence, token)
        elif body.startswith(b"-NAK"):
            delay_s = json.loads(body[4:])["delay"] / 1e9 if len(body) > 4 else 0.0
            token = durable.extend(sequence)
            if token is not None:
                asyncio.get_running_loop().call_later(
                    delay_s, lambda: self._overdue(durable, sequence, token)
                )
        else:  # +ACK and +TERM alike: a work queue forgets the message
            durable.ack(sequence)
            self._dispatch((stream, name))
