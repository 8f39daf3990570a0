"""Race a piece of work against the signal that stops it, or against time."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from tidegate.core.errors import TidegateError

T = TypeVar("T")

# Until an attempt is cancelled again.
CANCEL_AGAIN_S = 0.5


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


async def is_set_within(event: asyncio.Event, *, timeout_s: float) -> bool:
    """Whether an event is set now or within ``timeout_s``.

    Not by ``asyncio.wait_for``, which in Python 3.11 drops a cancellation that comes at the moment of its own result: a
    call whose caller went away would go on, and a cancelled loop would not end.
    """
    if event.is_set() or timeout_s <= 0:
        return event.is_set()
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def ended_within(attempt: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
    """The result of an attempt, which has ended when this returns: it is cancelled until it has.

    A library that waits by ``asyncio.wait_for`` may drop the one cancellation of ``asyncio.timeout`` (see
    ``is_set_within``), and try again without end.

    Raises:
        TimeoutError: it took longer.
    """
    task = asyncio.create_task(attempt)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
    if task.cancelled():
        raise TimeoutError
    return task.result()
