"""Retry with exponential backoff, jitter and a deadline: the one place that repeats a failed call.

Pauses and deadlines run on the event loop's clock, which is virtual in the simulation. Jitter comes from
``process_random``, which the simulation seeds.
"""

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias, TypeVar

import msgspec

from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.runtime.drain import Drain
from tidegate.runtime.process_random import GENERATOR

T = TypeVar("T")

# A peer that asks for a longer pause than this counts as unavailable.
RETRY_AFTER_MAX_S = 60.0


class Backoff(msgspec.Struct, frozen=True):
    """Pauses (seconds) that double from ``start_s`` up to ``max_s``, with equal jitter.

    Each pause is drawn evenly between half of its nominal length and all of it: clients that lost the same peer at the
    same instant return spread over that interval, and never at once.
    """

    start_s: float
    max_s: float

    def pauses_s(self, draw: Callable[[], float] = GENERATOR.random) -> Iterator[float]:
        """The pauses after the first, second, … failure; ``draw`` gives numbers in [0, 1)."""
        nominal_s = min(self.start_s, self.max_s)
        while True:
            yield nominal_s * (0.5 + 0.5 * draw())
            nominal_s = min(2 * nominal_s, self.max_s)


class DrainingError(UnavailableError):
    """Retries ended because the service drains."""


class StopWhenDraining(msgspec.Struct, frozen=True):
    """End with ``DrainingError`` once ``drain`` is requested: the work is redelivered to another instance."""

    drain: Drain


class LimitWhenDraining(msgspec.Struct, frozen=True):
    """Once ``drain`` is requested, end at the ``attempts``-th failure: a few more tries to finish what is finished."""

    drain: Drain
    attempts: int


class UntilCancelled(msgspec.Struct, frozen=True):
    """Never end because of draining: the owner of the call cancels it, at the latest after ``drain_timeout_s``."""


Draining: TypeAlias = StopWhenDraining | LimitWhenDraining | UntilCancelled


class FailedAttempt(msgspec.Struct, frozen=True):
    """A failure that another attempt follows in ``pause_s`` seconds; ``number`` counts attempts from 1."""

    error: TidegateError
    number: int
    pause_s: float


def _is_retryable(error: TidegateError) -> bool:
    return error.retryable


async def retry(
    call: Callable[[], Awaitable[T]],
    backoff: Backoff,
    *,
    deadline_s: float | None = None,
    attempts: int | None = None,
    draining: Draining | None = None,
    is_retryable: Callable[[TidegateError], bool] = _is_retryable,
    on_retry: Callable[[FailedAttempt], object] = lambda _failed: None,
    after: TidegateError | None = None,
    draw: Callable[[], float] = GENERATOR.random,
) -> T:
    """The result of ``call``, which is repeated until it succeeds.

    ``deadline_s``: no pause ends later than this after the start; without a deadline ``draining`` is required.
    ``attempts``: calls at most. ``on_retry`` counts and logs what failed and is attempted again. No pause is shorter
    than the error's ``retry_after_s``. ``after``: how a first attempt failed that the caller made itself, where the
    0.4 us that this function adds to a call count.

    Raises:
        DrainingError: the service drains, under ``StopWhenDraining``.
        TidegateError: the last failure: not retryable, or beyond the deadline, ``attempts`` or the draining limit.
    """
    assert deadline_s is not None or draining is not None, (
        "a retry ends by its deadline or by its drain policy"
    )
    loop = asyncio.get_running_loop()
    ends_at_s = math.inf if deadline_s is None else loop.time() + deadline_s
    pauses_s = backoff.pauses_s(draw)
    failures_while_draining = 0
    for attempt in itertools.count(1):
        try:
            if after is None:
                return await call()
            raise after
        except TidegateError as error:
            after = None
            if not is_retryable(error) or attempt == attempts:
                raise
            # On top of what the peer asked for: it may have asked all of its clients for the same.
            pause_s = next(pauses_s) + min(error.retry_after_s, RETRY_AFTER_MAX_S)
            if loop.time() + pause_s > ends_at_s:
                raise
            if isinstance(draining, LimitWhenDraining) and draining.drain.requested:
                failures_while_draining += 1
                if failures_while_draining == draining.attempts:
                    raise
            failed = FailedAttempt(error, attempt, pause_s)
            on_retry(failed)
        if not isinstance(draining, StopWhenDraining):
            await asyncio.sleep(pause_s)
        elif await draining.drain.sleep(pause_s):
            raise DrainingError("A failed call is not repeated: the service drains", why=str(failed.error))
    raise AssertionError("attempts are counted without end")
