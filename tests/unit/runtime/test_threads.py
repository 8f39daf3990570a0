"""Threads for blocking calls."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Generator

import pytest

from tidegate.runtime.threads import DaemonThread, iterate_in_thread


async def test_calls_run_in_order_in_one_thread_of_their_own() -> None:
    thread = DaemonThread("engine")
    loop = asyncio.get_running_loop()
    names: list[str] = []
    calls = [
        loop.run_in_executor(thread, lambda: names.append(threading.current_thread().name)) for _ in range(3)
    ]
    await asyncio.gather(*calls)
    assert names == ["engine"] * 3
    assert await loop.run_in_executor(thread, lambda: 7) == 7
    thread.shutdown()


async def test_exception_reaches_the_caller_and_the_next_call_runs() -> None:
    thread = DaemonThread("engine")
    loop = asyncio.get_running_loop()

    def fail() -> None:
        raise KeyError("a")

    with pytest.raises(KeyError):
        await loop.run_in_executor(thread, fail)
    assert await loop.run_in_executor(thread, lambda: 7) == 7
    thread.shutdown()
    with pytest.raises(RuntimeError, match="engine was shut down"):
        thread.submit(fail)


async def test_call_that_is_cancelled_before_it_starts_does_not_run() -> None:
    thread = DaemonThread("engine")
    started, go, ran = threading.Event(), threading.Event(), list[int]()

    def wait() -> None:
        started.set()
        go.wait(60.0)

    first = thread.submit(wait)
    assert started.wait(60.0)
    second = thread.submit(ran.append, 1)
    assert second.cancel()
    go.set()
    first.result(60.0)
    assert thread.submit(lambda: 7).result(60.0) == 7
    assert ran == []
    thread.shutdown()


def test_process_ends_although_a_call_never_returns() -> None:
    program = (
        "import asyncio, threading, time\n"
        "from tidegate.runtime.threads import DaemonThread\n"
        "async def main():\n"
        "    started = threading.Event()\n"
        "    def hang():\n"
        "        started.set()\n"
        "        time.sleep(1e6)\n"
        "    thread = DaemonThread('engine')\n"
        "    call = asyncio.get_running_loop().run_in_executor(thread, hang)\n"
        "    await asyncio.to_thread(started.wait, 60.0)\n"
        "    call.cancel()\n"
        "    thread.shutdown()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 0


async def test_event_loop_does_not_wait_for_the_read_of_an_iteration_that_was_cancelled() -> None:
    reading, go, closed, was_freed = (threading.Event() for _ in range(4))

    def read() -> Generator[int]:
        try:
            yield 1
            reading.set()
            if go.wait(10.0):
                was_freed.set()
            yield 2
        finally:
            closed.set()

    async def consume() -> None:
        async for _ in iterate_in_thread(read):
            pass

    consuming = asyncio.create_task(consume())
    assert await asyncio.to_thread(reading.wait, 60.0)
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    go.set()
    assert await asyncio.to_thread(closed.wait, 60.0), "the generator is closed all the same"
    assert was_freed.is_set(), "the loop went on while the thread was reading"
