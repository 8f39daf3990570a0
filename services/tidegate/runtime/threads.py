"""Blocking work outside of the event loop."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class WorkerThread:
    """One thread for the blocking calls of one owner, which run one after the other."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, call: Callable[[], ResultT]) -> ResultT:
        """The result of ``call``, made in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Start no further call; does not wait for the running one."""
        self._executor.shutdown(wait=False, cancel_futures=True)


async def iterate_in_thread(make: Callable[[], Generator[ItemT]]) -> AsyncIterator[ItemT]:
    """The items of a blocking generator, created, driven and closed by one thread of its own.

    Nothing is read ahead: memory contains only the caller's items, and stopping early frees the generator.
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


def num_threads() -> int:
    """Threads of this process, those of libraries included; Linux only."""
    return len(os.listdir("/proc/self/task"))
