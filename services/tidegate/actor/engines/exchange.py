"""Steps from the engine's thread to the event loop, and answers back: one at a time.

The thread waits for its answer; the loop side never blocks. A step that is not answered stays, so that a new stream
sends it again.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from tidegate.wire.vector_step import ActedStep, ActStep

# How late the thread notices that it is to wait no longer; an answer wakes it at once.
WAIT_S = 0.1


class Flag(Protocol):
    """``threading.Event``, or what a thread of the simulation waits for."""

    def set(self) -> None:
        """Who waits, waits no longer."""
        ...

    def clear(self) -> None:
        """Calls of ``wait`` wait from now on."""
        ...

    def wait(self, timeout: float, /) -> bool:
        """Whether it was set within so many seconds."""
        ...


class StepExchange:
    """The one step that waits, and its answer."""

    def __init__(self, answered: Flag | None = None) -> None:
        """``answered``: what the engine's thread waits for."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()
        self._answered: Flag = answered or threading.Event()
        # Held while a step is replaced or answered: an answer is to the step that it was compared with.
        self._lock = threading.Lock()
        self._step: ActStep | None = None
        self._answer: ActedStep | None = None

    # -- engine's thread -------------------------------------------------------------------------------------------

    def ask(self, step: ActStep, *, give_up: Callable[[], bool]) -> ActedStep | None:
        """The answer to a step; None once ``give_up`` holds, and then a late answer is dropped."""
        with self._lock:
            self._answered.clear()
            self._answer = None
            self._step = step
        loop = self._loop
        assert loop is not None, "tasks start once the service told its policy"
        loop.call_soon_threadsafe(self._asked.set)
        while not self._answered.wait(WAIT_S):
            if give_up():
                with self._lock:
                    self._step = None
                return None
        return self._answer

    # -- event loop ------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """The running loop is the one that answers."""
        self._loop = asyncio.get_running_loop()

    @property
    def step(self) -> ActStep | None:
        """The step that waits for its answer."""
        return self._step

    async def wait_for_another(self, than: ActStep | None) -> None:
        """Return once a step waits that is not ``than``."""
        while (step := self._step) is None or step is than:
            self._asked.clear()
            if self._step is step:
                await self._asked.wait()

    def answer(self, answer: ActedStep) -> None:
        """Answer the step that waits; an answer to another one comes too late and changes nothing."""
        with self._lock:
            step = self._step
            if step is None or answer.number != step.number:
                return
            self._step = None
            self._answer = answer
            self._answered.set()
