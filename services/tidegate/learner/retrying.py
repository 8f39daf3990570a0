"""Repeating a call until it is acknowledged: what the learner owes the ledger and the actors outlives an outage."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidegate.catalogue import learner as statistics
from tidegate.runtime.retrying import Backoff, FailedAttempt, LimitWhenDraining, retry
from tidegate.runtime.service import ServiceContext

BACKOFF = Backoff(start_s=0.05, max_s=2.0)
DRAINING_ATTEMPTS = 4

AnswerT = TypeVar("AnswerT")


async def until_done(
    context: ServiceContext, call: Callable[[], Awaitable[AnswerT]], *, what: str
) -> AnswerT:
    """The answer of ``call``, repeated with growing pauses while its peer is away.

    Draining leaves it a few more tries, because finished work is to be handed over, and then gives up: what is not
    handed over stands in the last checkpoint.

    Raises:
        TidegateError: the call failed in a way that repeating cannot mend, or while draining.
    """

    def note(failed: FailedAttempt) -> None:
        context.stats.add(statistics.RETRIES)
        context.log.warning("call_failed", what=what, error=str(failed.error), next_try_in_s=failed.pause_s)

    return await retry(
        call, BACKOFF, draining=LimitWhenDraining(context.drain, attempts=DRAINING_ATTEMPTS), on_retry=note
    )
