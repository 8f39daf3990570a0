"""Work that blocks, kept off the event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ItemT = TypeVar("ItemT")


async def iterate_in_thread(make: Callable[[], Iterator[ItemT]]) -> AsyncIterator[ItemT]:
    """The items of an iterator that blocks, made and driven by one thread of its own.

    One item is read ahead of nobody: memory holds what the caller holds. The iterator is closed in its thread, also
    when the caller stops early.
    """
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="iterate") as thread:
        items = await loop.run_in_executor(thread, make)
        try:
            while True:
                found = await loop.run_in_executor(thread, lambda: next(items, None))
                if found is None:
                    return
                yield found
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                thread.submit(close)
