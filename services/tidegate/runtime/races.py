"""Race a piece of work against the signal that stops it."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from tidegate.core.errors import TidegateError

T = TypeVar("T")


async def run_until(stop: Coroutine[Any, Any, object], work: Awaitable[T]) -> T | None:
    """The result of ``work``; None once ``stop`` returned before it, and ``work`` was cancelled and has ended.

    A result is never lost: it counts if both finish at once, and if the cancellation came too late for it. What
    ``work`` raises propagates, except for a ``TidegateError`` on its way out after it was cancelled. Neither of the two
    outlives this call; work that others share is passed as ``asyncio.shield(work)``.
    """
    stopping, working = asyncio.create_task(stop), asyncio.ensure_future(work)
    try:
        await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
        was_stopped = not working.done()
    finally:
        stopping.cancel()
        working.cancel()
        stop_failure, _ = await asyncio.gather(stopping, working, return_exceptions=True)
    if was_stopped:
        if isinstance(stop_failure, Exception):
            raise stop_failure
        if working.cancelled() or isinstance(working.exception(), TidegateError):
            return None
    return working.result()
