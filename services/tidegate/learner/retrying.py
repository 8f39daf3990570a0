"""Repeating a call until it is acknowledged: what the learner owes the ledger and the actors outlives an outage."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidegate.core.errors import TidegateError
from tidegate.runtime.service import ServiceContext

BACKOFF_START_S = 0.05
BACKOFF_MAX_S = 2.0
DRAINING_TRIES = 4

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
    backoff_s = BACKOFF_START_S
    tries_left = DRAINING_TRIES
    while True:
        try:
            return await call()
        except TidegateError as error:
            tries_left -= context.drain.requested
            if not error.retryable or tries_left == 0:
                raise
            context.stats.add("retries_total")
            context.log.warning("call_failed", what=what, error=str(error), next_try_in_s=backoff_s)
        await asyncio.sleep(backoff_s)
        backoff_s = min(2.0 * backoff_s, BACKOFF_MAX_S)
