"""The open streams: at most one step of each waits, and at most one answer and one policy leave it.

A stream of an instance takes the place of the one that it had, which its connection may have lost without our notice.
"""

import asyncio
from collections.abc import AsyncIterator

from tidegate.core.errors import BackpressureError
from tidegate.inference.state import CheckedStep, RefusedError
from tidegate.wire.vector_step import ActedStep, ActingPolicy


class ActingStream:
    """One actor's stream, between the servicer and the loop that answers.

    ``waiting``: its step that is not answered. ``answered_at_s``: when the last one was (monotonic; 0 before the
    first).
    """

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.waiting: CheckedStep | None = None
        self.answered_at_s = 0.0
        self._policy: ActingPolicy | None = None
        self._answer: ActedStep | None = None
        self._error: Exception | None = None
        self._ended = False
        self._changed = asyncio.Event()

    def ask(self, step: CheckedStep) -> None:
        """A step waits from now on.

        Raises:
            RefusedError: the one before is not answered.
        """
        if self.waiting is not None or self._answer is not None:
            raise RefusedError(
                "order", f"{self.instance} sent step {step.number} before the answer to the one before it"
            )
        if not self._ended:
            self.waiting = step

    def answer(self, answer: ActedStep, *, now_s: float) -> None:
        """Send an answer to the waiting step."""
        self.waiting = None
        self.answered_at_s = now_s
        self._answer = answer
        self._changed.set()

    def tell(self, policy: ActingPolicy) -> None:
        """Send the policy that acts from now on; one that was not sent yet is replaced."""
        self._policy = policy
        self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        """Send what is ready, then end: with ``error``, or as complete. Ending twice keeps the first reason."""
        if not self._ended:
            self._ended, self._error, self.waiting = True, error, None
        self._changed.set()

    async def outgoing(self, *, idle_s: float) -> AsyncIterator[ActingPolicy | ActedStep]:
        """What leaves the stream, until it ends or nothing has left it for ``idle_s``.

        Raises:
            Exception: why it was ended, a ``TidegateError`` unless the service failed.
        """
        while True:
            policy, self._policy = self._policy, None
            if policy is not None:
                yield policy
            answer, self._answer = self._answer, None
            if answer is not None:
                yield answer
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            try:
                async with asyncio.timeout(idle_s):
                    await self._changed.wait()
            except TimeoutError:
                return
            self._changed.clear()


class OpenStreams:
    """The streams by instance, at most ``streams_max``; a place is freed when a stream closes."""

    def __init__(self, *, streams_max: int) -> None:
        self._streams_max = streams_max
        self._by_instance: dict[str, ActingStream] = {}

    def open(self, instance: str) -> ActingStream:
        """A stream of ``instance``, in place of an older one.

        Raises:
            BackpressureError: every place is taken.
        """
        old = self._by_instance.pop(instance, None)
        if old is not None:
            old.end()
        if len(self._by_instance) >= self._streams_max:
            raise BackpressureError(
                f"The inference service has {self._streams_max} streams",
                fix="raise inference.streams_max above the number of actors",
            )
        stream = self._by_instance[instance] = ActingStream(instance)
        return stream

    def close(self, stream: ActingStream) -> None:
        """Free the place of a stream that has ended."""
        if self._by_instance.get(stream.instance) is stream:
            del self._by_instance[stream.instance]

    def all(self) -> list[ActingStream]:
        """The open ones, in the order in which they were opened."""
        return list(self._by_instance.values())
