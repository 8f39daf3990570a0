"""The state of a JetStream broker: streams with their limits, durable consumers with their redeliveries.

It has the traits that were measured on the real one (I4 in docs/invariants.md depends on them): a full stream refuses,
a restart forgets the ids of consumed messages, a message at ``max_deliver`` stays in the work queue undelivered.
"""

from collections import deque

import msgspec

FULL_CODE = 10077
WRONG_SEQUENCE_CODE = 10071

Headers = dict[str, str]


class StreamLimits(msgspec.Struct, frozen=True):
    """Bounds of a stream; 0 is no bound."""

    name: str
    subjects: tuple[str, ...]
    work_queue: bool
    discard_new: bool
    max_bytes: int
    max_messages: int
    max_messages_per_subject: int
    duplicate_window_s: float


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as the stream keeps it."""

    sequence: int
    subject: str
    data: bytes
    headers: Headers
    message_id: str

    def num_bytes(self) -> int:
        """Bytes that count towards the stream's limit."""
        return len(self.data) + sum(len(key) + len(value) + 4 for key, value in self.headers.items())


class PutAccepted(msgspec.Struct, frozen=True):
    """The stream holds the message; ``duplicate``: it held it before."""

    sequence: int
    duplicate: bool


class PutRefused(msgspec.Struct, frozen=True):
    """The stream refused the message, with an error code of the broker."""

    code: int
    description: str


class Stream:
    """One stream."""

    def __init__(self, limits: StreamLimits) -> None:
        self.limits = limits
        self.messages: dict[int, StoredMessage] = {}
        self.num_bytes = 0
        self.last_sequence = 0
        self.num_refused = 0
        # A fault closes the stream: it refuses every message, as on a full disk.
        self.closed = False
        self._ids: dict[str, tuple[int, float]] = {}
        self._last_of: dict[str, int] = {}

    def put(
        self,
        subject: str,
        data: bytes,
        headers: Headers,
        *,
        message_id: str,
        expected: int | None,
        now_s: float,
    ) -> PutAccepted | PutRefused:
        """A publish arrives."""
        known = self._ids.get(message_id) if message_id else None
        if known is not None and now_s - known[1] < self.limits.duplicate_window_s:
            return PutAccepted(known[0], duplicate=True)
        if expected is not None and self._last_of.get(subject, 0) != expected:
            return PutRefused(WRONG_SEQUENCE_CODE, f"wrong last sequence: {self._last_of.get(subject, 0)}")
        message = StoredMessage(self.last_sequence + 1, subject, data, headers, message_id)
        if self.limits.discard_new and (self.closed or self._is_full_for(message)):
            self.num_refused += 1
            return PutRefused(FULL_CODE, "maximum messages exceeded")
        self.last_sequence = message.sequence
        self.messages[message.sequence] = message
        self.num_bytes += message.num_bytes()
        self._last_of[subject] = message.sequence
        if message_id:
            self._ids[message_id] = (message.sequence, now_s)
        self._discard_old(subject)
        return PutAccepted(message.sequence, duplicate=False)

    def _is_full_for(self, message: StoredMessage) -> bool:
        limits = self.limits
        return bool(
            (limits.max_messages and len(self.messages) >= limits.max_messages)
            or (limits.max_bytes and self.num_bytes + message.num_bytes() > limits.max_bytes)
        )

    def _discard_old(self, subject: str) -> None:
        limits = self.limits
        if limits.max_messages_per_subject:
            same = [sequence for sequence, message in self.messages.items() if message.subject == subject]
            for sequence in same[: -limits.max_messages_per_subject]:
                self.remove(sequence)
        if not limits.discard_new:
            while limits.max_bytes and self.num_bytes > limits.max_bytes:
                self.remove(next(iter(self.messages)))

    def remove(self, sequence: int) -> None:
        """A message was consumed or discarded."""
        message = self.messages.pop(sequence, None)
        if message is not None:
            self.num_bytes -= message.num_bytes()

    def last(self, subject: str) -> StoredMessage | None:
        """The newest message of a subject."""
        return self.messages.get(self._last_of.get(subject, 0))

    def restart(self, *, now_s: float) -> None:
        """The broker was killed and is back: messages are there, ids of consumed ones are forgotten."""
        self._ids = {
            message.message_id: (message.sequence, now_s)
            for message in self.messages.values()
            if message.message_id
        }


class _Outstanding(msgspec.Struct):
    """An unacknowledged delivery; ``token`` identifies its current redelivery timer."""

    num_delivered: int
    token: int


class Durable:
    """One durable consumer of a work queue."""

    def __init__(
        self, stream: Stream, *, name: str, ack_wait_s: float, max_deliver: int, max_ack_pending: int
    ) -> None:
        self.stream = stream
        self.name = name
        self.ack_wait_s = ack_wait_s
        self.max_deliver = max_deliver
        self.max_ack_pending = max_ack_pending
        self.num_redelivered = 0
        self.outstanding: dict[int, _Outstanding] = {}
        self.parked: set[int] = set()
        self._next = 1
        self._redeliver: deque[int] = deque()
        self._delivered: dict[int, int] = {}
        self._tokens = 0

    def take(self) -> tuple[StoredMessage, int, int] | None:
        """The next message to deliver, how often it was, and the token of its redelivery timer."""
        if len(self.outstanding) >= self.max_ack_pending:
            return None
        while self._redeliver or self._next <= self.stream.last_sequence:
            if self._redeliver:
                sequence = self._redeliver.popleft()
            else:
                sequence, self._next = self._next, self._next + 1
            message = self.stream.messages.get(sequence)
            if message is None:
                continue
            count = self._delivered.get(sequence, 0) + 1
            self.num_redelivered += count > 1
            self._delivered[sequence] = count
            self._tokens += 1
            self.outstanding[sequence] = _Outstanding(count, self._tokens)
            return message, count, self._tokens
        return None

    def ack(self, sequence: int) -> None:
        """Done: the work queue forgets the message. Late answers count as well."""
        self.outstanding.pop(sequence, None)
        self._delivered.pop(sequence, None)
        self.parked.discard(sequence)
        self.stream.remove(sequence)

    def extend(self, sequence: int) -> int | None:
        """Still working: a new redelivery timer with the token returned; None if it is not outstanding."""
        waiting = self.outstanding.get(sequence)
        if waiting is None:
            return None
        self._tokens += 1
        waiting.token = self._tokens
        return waiting.token

    def redeliver(self, sequence: int, *, token: int | None = None) -> bool:
        """Queue an overdue or refused delivery again, unless it has reached ``max_deliver``; returns whether it did."""
        waiting = self.outstanding.get(sequence)
        if waiting is None or (token is not None and waiting.token != token):
            return False
        del self.outstanding[sequence]
        if self.max_deliver > 0 and waiting.num_delivered >= self.max_deliver:
            self.parked.add(sequence)
            return False
        self._redeliver.append(sequence)
        return True
