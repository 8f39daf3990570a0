"""The simulated broker: routes messages between connections and holds the streams.

Streams and consumers survive a kill, as files do. Pulls, deliveries in flight, and subscriptions (until their
connections are back) do not.
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tidegate.sim.network import Network
from tidegate.sim.streams import (
    Durable,
    Headers,
    PutAccepted,
    PutRefused,
    StoredMessage,
    Stream,
    StreamLimits,
)
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
        """The name of its process."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its process is alive."""
        ...

    def arrived(self, subject: str, data: bytes, headers: Headers, reply: str) -> None:
        """A message for one of its subscriptions."""
        ...

    def matches(self, subject: str) -> bool:
        """Whether it subscribed to a subject."""
        ...

    def delay_s(self, subject: str) -> float:
        """Seconds that messages of a subject take to it beyond the network's delay."""
        ...

    def lost(self) -> None:
        """The connection to the broker was lost."""
        ...

    def reconnected(self) -> None:
        """The broker is reachable again."""
        ...


class _Pull(msgspec.Struct):
    peer: Peer
    inbox: str
    left: int


class SimulatedBroker:
    """One broker process with file storage."""

    def __init__(
        self, network: Network, rng: random.Random, *, work_queue_messages_max: int, ack_wait_max_s: float
    ) -> None:
        """``rng`` draws the time until connections are back after a restart.

        Work queues hold at most ``work_queue_messages_max`` messages, as on a small disk. Deliveries are repeated after
        at most ``ack_wait_max_s``, so that a short run sees the redeliveries of a long one.
        """
        self.up = True
        self.streams: dict[str, Stream] = {}
        self.durables: dict[tuple[str, str], Durable] = {}
        # The configurations of streams and consumers, in the client library's own types.
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

    # -- kill and restart ------------------------------------------------------------------------------------------

    def connect(self, peer: Peer) -> None:
        """A process opens its connection; connections of killed processes are removed."""
        self._peers = [*(other for other in self._peers if other.alive), peer]

    def kill(self) -> None:
        """The broker process is killed."""
        self.up = False
        for peer in self._peers:
            peer.lost()
        for pulls in self._pulls.values():
            pulls.clear()

    def restart(self) -> None:
        """The broker is back with the content of its files; connections reconnect one by one."""
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
        """Create a durable consumer, or change the bound on its unacknowledged deliveries."""
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
        if not isinstance(answer, PutRefused):
            for other in self._peers:
                if other.alive and other.matches(subject):
                    self._send(other, subject, data, headers)
        if answer is None or stream_name is None:
            return
        if isinstance(answer, PutRefused):
            code = 503 if self.streams[stream_name].limits.discard_new else 400
            answered: dict[str, Any] = {
                "error": {"code": code, "err_code": answer.code, "description": answer.description}
            }
        else:
            self._dispatch_all(stream_name)
            answered = {"stream": stream_name, "seq": answer.sequence, "duplicate": answer.duplicate}
        if reply:
            self._send(peer, reply, json.dumps(answered).encode(), {})

    def _store(self, stream: Stream, subject: str, data: bytes, headers: Headers) -> PutAccepted | PutRefused:
        expected = headers.get(HEADER_EXPECTED_LAST_SUBJECT_SEQUENCE)
        answer = stream.put(
            subject,
            data,
            headers,
            message_id=headers.get(HEADER_MESSAGE_ID, ""),
            expected=None if expected is None else int(expected),
            now_s=self._clock(),
        )
        if isinstance(answer, PutAccepted) and not answer.duplicate:
            self.on_stored(stream, stream.messages[answer.sequence])
        return answer

    def _send(
        self, peer: Peer, subject: str, data: bytes, headers: Headers, *, to: str = "", reply: str = ""
    ) -> None:
        """Send a message to a connection, under ``to`` if that is not its subject."""
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
        """Deliver what can be delivered, one message per reader in turn."""
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
        if self.up and durable.redeliver(sequence, token=token):
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
