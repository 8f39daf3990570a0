"""Blocking work outside of the event loop."""

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class DaemonThread(Executor):
    """One thread for calls that may never return; the process ends without waiting for it.

    The threads of ``ThreadPoolExecutor`` are joined when the interpreter exits, which a call that hangs would prevent.
    Bounded by its owner, which has one call in it at a time.
    """

    def __init__(self, name: str) -> None:
        """The thread starts with the first call."""
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(
        self, fn: Callable[Parameters, ResultT], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[ResultT]:
        """Run a call after those before it.

        Raises:
            RuntimeError: the executor was shut down.
        """
        if self._closed:
            raise RuntimeError(f"thread {self._name} was shut down")
        future: Future[ResultT] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # the caller that awaits the future gets it
                future.set_exception(error)

        self._calls.put(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Start no further call; never waits for the running one."""
        del wait, cancel_futures
        self._closed = True
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


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

    Nothing is read ahead: memory contains only the caller's items, and stopping early frees the generator, once the
    read of that moment has ended. The event loop does not wait for it.
    """
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="iterate")
    try:
        items = await loop.run_in_executor(thread, make)
        try:
            while True:
                found = await loop.run_in_executor(thread, lambda: next(items, None))
                if found is None:
                    return
                yield found
        finally:
            thread.submit(items.close)
    finally:
        thread.shutdown(wait=False)


def num_threads() -> int:
    """Threads of this process, those of libraries included; Linux only."""
    return len(os.listdir("/proc/self/task"))
