"""Work that blocks, kept off the event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ItemT = TypeVar("ItemT")


async def iterate_in_thread(make: Callable[[], Generator[ItemT]]) -> AsyncIterator[ItemT]:
    """The items of a generator that blocks, made, driven and closed by one thread of its own.

    Nothing is read ahead: memory holds what the caller holds, and one that stops early frees what the generator held.
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
            thread.submit(items.close)
