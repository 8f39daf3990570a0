"""Retries calls until they are acknowledged: commits and published versions survive an outage."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import TidegateError
from tidegate.runtime.retrying import Backoff, FailedAttempt, LimitWhenDraining, retry
from tidegate.runtime.service import ServiceContext

BACKOFF = Backoff(start_s=0.05, max_s=2.0)
DRAINING_ATTEMPTS = 4

AnswerT = TypeVar("AnswerT")


async def until_done(
    context: ServiceContext, call: Callable[[], Awaitable[AnswerT]], *, what: str
) -> AnswerT:
    """The answer of ``call``, retried with backoff while its peer is unreachable.

    While draining a few more attempts are made, so that finished work is delivered; the last checkpoint holds what is
    not delivered.

    Raises:
        TidegateError: the call failed with an error that is not retryable, or ran out of attempts while draining.
    """

    def note(failed: FailedAttempt) -> None:
        context.stats.add(statistics.RETRIES)
        context.log.warning("call_failed", what=what, error=str(failed.error), next_try_in_s=failed.pause_s)

    return await retry(
        call, BACKOFF, draining=LimitWhenDraining(context.drain, attempts=DRAINING_ATTEMPTS), on_retry=note
    )


@contextmanager
def retryable_suppressed() -> Generator[None]:
    """Leave out a call that failed for the moment: its peer is away, busy, or has not seen a rotated credential.

    Raises:
        TidegateError: what a later call would meet as well.
    """
    try:
        yield
    except TidegateError as error:
        if not error.retryable:
            raise
