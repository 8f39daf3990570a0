"""An asyncio event loop on virtual time: waiting is free, and one seed gives one order of events.

When nothing is ready the clock jumps to the next timer. Tasks and futures hash by creation order: asyncio
keeps them in sets, whose order would otherwise depend on addresses.
"""

import asyncio
import contextvars
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from tidegate.sim.process import CURRENT, KillableTask

T = TypeVar("T")

# Wall time at virtual zero; any value far from zero will do, because ages and deadlines are differences.
EPOCH_S = 1_800_000_000.0
# Virtual seconds of one turn of the loop. Timers fire up to a clock's resolution early: if no time passed, two tasks
# that each wait for the last microsecond of a deadline would keep each other from ever seeing it.
STEP_S = 1e-9


class DeadlockError(RuntimeError):
    """Nothing is ready and no timer is set."""


class _Selector(selectors.SelectSelector):
    """Registers like any selector and never waits: each wait moves the clock, and each turn moves it a little."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError("Nothing is left to happen")
        self.now_s += max(STEP_S, timeout)
        return []


class _Task(asyncio.Task[Any]):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, loop: "VirtualLoop", **options: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coroutine, loop=loop, **options)
        # A killed process leaves pending tasks behind; asyncio must not warn of them.
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    def __init__(self, *, loop: "VirtualLoop") -> None:
        self._number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop of a simulated cluster."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        self.numbers = itertools.count()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-6
        self.set_task_factory(cast("Any", _make_task))

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._virtual.now_s

    def create_future(self) -> "asyncio.Future[Any]":
        """A future with a reproducible hash."""
        return _Future(loop=self)

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """Run ``func`` in a thread that alternates with the loop (see ``Worker``).

        Calls for the default executor (``asyncio.to_thread``) read and write files; they run at once.
        """
        if executor is not None:
            return CURRENT.get().run_in_thread(lambda: func(*args))
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # the caller that awaits the future gets it
            future.set_exception(error)
        return future


class VirtualClock:
    """The clocks that services read, on a loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return EPOCH_S + self._loop.time()

    def monotonic_s(self) -> float:
        """Seconds since the start."""
        return self._loop.time()


def _make_task(loop: VirtualLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> "asyncio.Task[Any]":
    context: contextvars.Context | None = options.get("context")
    process = CURRENT.get(None) if context is None else context.get(CURRENT)
    if process is None:
        return _Task(coroutine, loop=loop, **options)
    killable = KillableTask(coroutine, process)
    task = _Task(killable, loop=loop, **options)
    process.adopt(killable, task)
    return task
