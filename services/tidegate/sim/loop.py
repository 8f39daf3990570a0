"""An asyncio event loop on virtual time: waiting costs nothing, and the same seed gives the same order of events.

When nothing is ready the clock jumps to the next timer. Tasks and futures hash by the order of their making, because
asyncio keeps them in sets and a set of addresses has another order in every process.
"""

import asyncio
import contextvars
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from tidegate.sim.process import CURRENT, Mortal

T = TypeVar("T")

# Wall time at virtual zero: ages and deadlines are differences, so only its being far from zero matters.
EPOCH_S = 1_800_000_000.0
# What a turn of the loop takes. Timers fire up to a clock's resolution early: if no time passed, two tasks that each
# wait for the last microsecond of a deadline would keep each other from ever seeing it.
STEP_S = 1e-9


class DeadlockError(RuntimeError):
    """Nothing is ready and no timer is set: everybody waits for everybody."""


class _Selector(selectors.SelectSelector):
    """Registers like any selector and never waits: what would be a wait moves the clock, and every turn a little."""

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
        # A killed process leaves tasks behind; that is no news.
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
    """The loop of a simulated cluster; everything runs in it, one event at a time."""

    def __init__(self) -> None:
        """Time starts at 0."""
        self._virtual = _Selector()
        self.numbers = itertools.count()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-6
        self.set_task_factory(cast("Any", _make_task))

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._virtual.now_s

    def create_future(self) -> "asyncio.Future[Any]":
        """A future with a hash that repeats."""
        return _Future(loop=self)

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """Run ``func`` in a thread that takes turns with the loop (see ``Worker``).

        What goes to the default executor (``asyncio.to_thread``) reads and writes files and is done at once.
        """
        if executor is not None:
            return CURRENT.get().employ(lambda: func(*args))
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # whatever it raises belongs to whoever waits for it
            future.set_exception(error)
        return future


class VirtualClock:
    """The clocks that services read, on a loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Follows ``loop``."""
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
    mortal = Mortal(coroutine, process)
    task = _Task(mortal, loop=loop, **options)
    process.adopt(mortal, task)
    return task
