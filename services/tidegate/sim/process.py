"""Processes that can be killed as by ``kill -9``: at any await, without cleaning up.

A process is a set of tasks that share a context variable; tasks that they create belong to it too. The tasks of a
killed process never run another line. Work in a thread runs in a ``Worker``, which alternates with the event loop, so
that threads do not change the order of events.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# One thread per running engine or trainer; at the end of a run every worker has been killed.
_THREADS = ThreadPoolExecutor(max_workers=64, thread_name_prefix="sim-worker")

# How late a worker notices a flag.
FLAG_POLL_S = 0.005

CURRENT: "contextvars.ContextVar[Process]" = contextvars.ContextVar("process")


class Process:
    """One process of a service."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self._context = contextvars.copy_context()
        self._context.run(CURRENT.set, self)
        self._tasks: dict[KillableTask, asyncio.Task[Any]] = {}
        self._killed_tasks: list[KillableTask] = []
        self._on_killed: list[Callable[[], None]] = []
        self._workers: list[Worker] = []

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine as part of this process."""
        loop = asyncio.get_running_loop()
        return self._context.copy().run(loop.create_task, coroutine)

    def run(self, call: Callable[[], None]) -> None:
        """Call something as part of this process."""
        self._context.copy().run(call)

    def adopt(self, killable: "KillableTask", task: "asyncio.Task[Any]") -> None:
        """Register a new task of this process."""
        self._tasks[killable] = task
        task.add_done_callback(lambda _: self._tasks.pop(killable, None))

    def run_in_thread(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run ``call`` in a worker thread of this process."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        worker = Worker(call, future)
        self._workers = [*(worker for worker in self._workers if worker.working), worker]
        asyncio.get_running_loop().call_soon(worker.resume)
        return future

    async def cancel_tasks(self) -> None:
        """Cancel what still runs besides the caller, as ``asyncio.Runner`` does once its coroutine has returned."""
        current = asyncio.current_task()
        others = [task for task in self._tasks.values() if task is not current]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def kill(self) -> None:
        """End it: no further line of its code runs, not even its clean-up."""
        self.alive = False
        for worker in self._workers:
            worker.kill()
        self._killed_tasks = list(self._tasks)
        callbacks, self._on_killed = self._on_killed, []
        for callback in callbacks:
            callback()
        for task in list(self._tasks.values()):
            task.cancel()

    def on_killed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the process is killed: its peers see their connections end."""
        self._on_killed.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call ``callback`` any more: the connection has ended."""
        if callback in self._on_killed:
            self._on_killed.remove(callback)

    def close_tasks(self) -> None:
        """Close the coroutines of a killed process, at the end of the run, when their clean-up has no effect."""
        for killable in self._killed_tasks:
            killable.close()
        self._killed_tasks.clear()


class KillableTask(Coroutine[Any, Any, Any]):
    """A coroutine that stops at its await when its process is killed."""

    def __init__(self, inner: Coroutine[Any, Any, Any], process: Process) -> None:
        self._inner = inner
        self._process = process

    def send(self, value: Any) -> Any:
        """One step, or none if the process was killed."""
        if not self._process.alive:
            raise StopIteration
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        """One step with an exception, or none if the process was killed."""
        if not self._process.alive:
            raise StopIteration
        return self._inner.throw(*error)

    def close(self) -> None:
        """Unwind it; its exceptions are ignored."""
        with contextlib.suppress(BaseException):
            self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()


class WorkerKilledError(BaseException):
    """The process of a worker was killed; unwinds its thread past everything that catches exceptions."""


class Worker:
    """A call in a thread that runs only while the event loop waits for it, from one ``pause`` to the next."""

    _of_thread = threading.local()

    def __init__(self, call: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        self._call = call
        self._future = future
        self._loop = asyncio.get_running_loop()
        self._turn = _locked()
        self._yielded = _locked()
        self._killed = False
        self._started = False
        self.working = True

    @classmethod
    def current(cls) -> "Worker":
        """The worker whose thread is running."""
        return cls._of_thread.worker

    def resume(self) -> None:
        """In the loop's thread: let the worker run until it pauses or ends."""
        if not self.working:
            return
        if self._started:
            self._turn.release()
        else:
            self._started = True
            _THREADS.submit(self._run)
        self._yielded.acquire()

    def pause(self, seconds: float) -> None:
        """In the worker's thread: let virtual time pass."""
        self._loop.call_later(seconds, self.resume)
        self._yielded.release()
        self._turn.acquire()
        if self._killed:
            raise WorkerKilledError

    def kill(self) -> None:
        """In the loop's thread: unwind the worker; its future is never resolved."""
        self._killed = True
        if self._started:
            self.resume()
        self.working = False

    def _run(self) -> None:
        self._of_thread.worker = self
        try:
            value = self._call()
        except WorkerKilledError:
            pass
        except Exception as error:  # the caller that awaits the future gets it
            if not self._future.done():
                self._future.set_exception(error)
        else:
            if not self._future.done():
                self._future.set_result(value)
        self.working = False
        self._yielded.release()


class WorkerFlag:
    """What a worker waits for, as ``threading.Event``: virtual time passes meanwhile."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """The worker waits no longer."""
        self._is_set = True

    def clear(self) -> None:
        """It waits from now on."""
        self._is_set = False

    def wait(self, timeout: float, /) -> bool:
        """In the worker's thread: whether it was set within so many seconds."""
        waited_s = 0.0
        while not self._is_set and waited_s < timeout:
            Worker.current().pause(FLAG_POLL_S)
            waited_s += FLAG_POLL_S
        return self._is_set


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
