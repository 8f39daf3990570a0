"""Processes that can be killed as ``kill -9`` does it: at whatever they wait for, with nothing handed back.

A process is a set of tasks that share a context variable; what a task of it creates belongs to it as well. A killed
one's tasks never run another line. Work that a service gives to a thread runs in a ``Worker``, which takes turns with
the event loop, so that threads bring no chance into the order of events.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# One thread an engine or trainer at work; every worker of a run that is over has been dismissed.
_THREADS = ThreadPoolExecutor(max_workers=64, thread_name_prefix="sim-worker")

CURRENT: "contextvars.ContextVar[Process]" = contextvars.ContextVar("process")


class Process:
    """One incarnation of a service's process."""

    def __init__(self, name: str) -> None:
        """Alive, with nothing to do yet."""
        self.name = name
        self.alive = True
        self._context = contextvars.copy_context()
        self._context.run(CURRENT.set, self)
        self._mortals: dict[Mortal, asyncio.Task[Any]] = {}
        self._corpses: list[Mortal] = []
        self._mourners: list[Callable[[], None]] = []
        self._workers: list[Worker] = []

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine as part of this process."""
        loop = asyncio.get_running_loop()
        return self._context.copy().run(loop.create_task, coroutine)

    def run(self, call: Callable[[], None]) -> None:
        """Call something as part of this process."""
        self._context.copy().run(call)

    def adopt(self, mortal: "Mortal", task: "asyncio.Task[Any]") -> None:
        """A task of this process begins."""
        self._mortals[mortal] = task
        task.add_done_callback(lambda _: self._mortals.pop(mortal, None))

    def employ(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run ``call`` in a worker thread of this process."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        worker = Worker(call, future)
        self._workers = [*(worker for worker in self._workers if worker.working), worker]
        asyncio.get_running_loop().call_soon(worker.take_turn)
        return future

    async def cancel_tasks(self) -> None:
        """Cancel what still runs besides the caller, as ``asyncio.Runner`` does once its coroutine has returned."""
        current = asyncio.current_task()
        others = [task for task in self._mortals.values() if task is not current]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def kill(self) -> None:
        """End it: not a line more of its code runs, not even what it would do to clean up."""
        self.alive = False
        for worker in self._workers:
            worker.dismiss()
        self._corpses = list(self._mortals)
        mourners, self._mourners = self._mourners, []
        for mourner in mourners:
            mourner()
        for task in list(self._mortals.values()):
            task.cancel()

    def on_death(self, mourner: Callable[[], None]) -> None:
        """Call ``mourner`` when the process is killed: its peers see their connections end."""
        self._mourners.append(mourner)

    def forget(self, mourner: Callable[[], None]) -> None:
        """The connection ended before."""
        if mourner in self._mourners:
            self._mourners.remove(mourner)

    def bury(self) -> None:
        """Free what a killed process still refers to, once nothing can be harmed by it any more."""
        for mortal in self._corpses:
            mortal.close()
        self._corpses.clear()


class Mortal(Coroutine[Any, Any, Any]):
    """A coroutine that stops where it is when its process dies."""

    def __init__(self, inner: Coroutine[Any, Any, Any], process: Process) -> None:
        """Belongs to ``process`` from its first step."""
        self._inner = inner
        self._process = process

    def send(self, value: Any) -> Any:
        """One step, or none if the process is dead."""
        if not self._process.alive:
            raise StopIteration
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        """One step with an exception, or none if the process is dead."""
        if not self._process.alive:
            raise StopIteration
        return self._inner.throw(*error)

    def close(self) -> None:
        """Unwind it, whatever it says: nobody is there to hear it."""
        with contextlib.suppress(BaseException):
            self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()


class DismissedError(BaseException):
    """The process of a worker was killed; unwinds its thread past everything that catches exceptions."""


class Worker:
    """A call in a thread that runs only while the event loop waits for it: from one ``pause`` to the next."""

    _of_thread = threading.local()

    def __init__(self, call: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        """It begins with its first turn."""
        self._call = call
        self._future = future
        self._loop = asyncio.get_running_loop()
        self._turn = _locked()
        self._yielded = _locked()
        self._dismissed = False
        self._started = False
        self.working = True

    @classmethod
    def current(cls) -> "Worker":
        """The worker whose thread is running."""
        return cls._of_thread.worker

    def take_turn(self) -> None:
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
        self._loop.call_later(seconds, self.take_turn)
        self._yielded.release()
        self._turn.acquire()
        if self._dismissed:
            raise DismissedError

    def dismiss(self) -> None:
        """In the loop's thread: unwind the worker; its answer is never given."""
        self._dismissed = True
        if self._started:
            self.take_turn()
        self.working = False

    def _run(self) -> None:
        self._of_thread.worker = self
        try:
            value = self._call()
        except DismissedError:
            pass
        except Exception as error:  # whatever the call raises belongs to whoever waits for it
            if not self._future.done():
                self._future.set_exception(error)
        else:
            if not self._future.done():
                self._future.set_result(value)
        self.working = False
        self._yielded.release()


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
