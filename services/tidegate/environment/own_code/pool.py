"""A bounded pool of child processes that run one piece of own code.

A process that is late or dead is replaced in the background while others go on, at growing intervals if it dies again
without one answer in between. A question waits for a free process without a deadline of its own, as all that hold one
have deadlines; once no process can be started, questions fail.
"""

import asyncio
import os
import signal
from collections.abc import Iterator

import msgspec

from tidegate.core.errors import ConfigError, TidegateError, UnavailableError
from tidegate.environment.judgements import Judgement, VerifierFailed, failed_at
from tidegate.environment.own_code.messages import (
    ANSWERS,
    CHILD,
    Answer,
    Failed,
    Ready,
    Replied,
    Scored,
    ScoreQuestion,
)
from tidegate.environment.tasks.port import Problem, Score
from tidegate.runtime.own_code.process import ChildProcess, EndedError, LateError
from tidegate.runtime.own_code.references import OwnReference
from tidegate.runtime.retrying import Backoff

# Between two starts of a process that ends without an answer.
BACKOFF = Backoff(start_s=0.25, max_s=10.0)
# How often a waiting question looks whether any process is left to wait for.
RECHECK_S = 1.0


class OwnCodeSettings(msgspec.Struct, frozen=True):
    """Bounds of a pool: ``num_processes``; seconds for one call and for loading; bytes of data of one process."""

    num_processes: int
    deadline_s: float
    start_deadline_s: float
    memory_bytes: int


class _ProcessSlot:
    """The place of one process; ``pauses_s`` grows with its deaths, and starts over with an answer."""

    def __init__(self) -> None:
        self.child: ChildProcess[Answer] | None = None
        self.pauses_s: Iterator[float] | None = None


class OwnCodePool:
    """Scores by one piece of own code; the processes are started by ``start``."""

    def __init__(self, reference: OwnReference, settings: OwnCodeSettings) -> None:
        self._reference = reference
        self._settings = settings
        self._idle: asyncio.LifoQueue[_ProcessSlot] = asyncio.LifoQueue()
        self._restarts: set[asyncio.Task[None]] = set()
        self._num_starting = 0
        self._why_not_started = ""
        self.where = ""

    async def start(self) -> None:
        """Load the code in the first process, so that a mistake in it is known at once; the others follow.

        Raises:
            ConfigError: the code cannot be loaded; the message names file and line.
        """
        first = _ProcessSlot()
        failed = await self._load(first)
        if failed is not None:
            raise ConfigError(
                f"{self._reference.written} cannot be loaded",
                why=failed,
                fix="correct it, then start the run again",
            )
        self._idle.put_nowait(first)
        for _ in range(self._settings.num_processes - 1):
            self._replace(_ProcessSlot())

    async def score(self, problem: Problem, completion: str) -> Judgement:
        """The verdict: a score whose numbers are not checked yet, or a failure."""
        try:
            slot = await self._free_slot()
        except UnavailableError as error:
            return failed_at("UnavailableError", str(error), retryable=True)
        assert slot.child is not None, "an idle slot has a process"
        try:
            answer = await slot.child.ask(
                ScoreQuestion(problem, completion), deadline_s=self._settings.deadline_s
            )
        except LateError as late:
            self._replace(slot)
            return failed_at("deadline", late.what, where=late.where or self.where, trace=late.stack)
        except EndedError as ended:
            self._replace(slot)
            # SIGKILL comes from outside, as for want of memory; everything else the code does again.
            return failed_at(
                "ended",
                ended.what,
                where=ended.where or self.where,
                trace=ended.printed,
                retryable=ended.number == signal.SIGKILL,
            )
        except TidegateError as error:
            self._replace(slot)
            return failed_at(type(error).__name__, str(error), where=self.where)
        except BaseException:
            self._replace(slot)
            raise
        slot.pauses_s = None
        if isinstance(answer, Failed) and answer.spent:
            self._replace(slot)
        else:
            self._idle.put_nowait(slot)
        return _judgement(answer)

    async def close(self) -> None:
        """End all processes; no question follows."""
        for task in list(self._restarts):
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        while not self._idle.empty():
            await self._end(self._idle.get_nowait())

    async def _free_slot(self) -> _ProcessSlot:
        """Raises ``UnavailableError`` once there is no process and none could be started."""
        while True:
            try:
                async with asyncio.timeout(RECHECK_S):
                    slot = await self._idle.get()
            except TimeoutError:
                if self._num_starting >= self._settings.num_processes and self._why_not_started:
                    raise UnavailableError(
                        f"No process of {self._reference.written} starts", why=self._why_not_started
                    ) from None
                continue
            if slot.child is not None and slot.child.is_alive:
                return slot
            self._replace(slot)  # it ended while it was idle

    def _replace(self, slot: _ProcessSlot) -> None:
        task = asyncio.create_task(self._started_again(slot))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _started_again(self, slot: _ProcessSlot) -> None:
        """End the process of a slot and start another; the slot is idle then. Ends by cancellation alone."""
        self._num_starting += 1
        try:
            await self._end(slot)
            if slot.pauses_s is None:
                slot.pauses_s = BACKOFF.pauses_s()
            else:
                await asyncio.sleep(next(slot.pauses_s))
            while (failed := await self._load(slot)) is not None:
                self._why_not_started = failed
                await asyncio.sleep(next(slot.pauses_s))
            self._why_not_started = ""
            self._idle.put_nowait(slot)
        except BaseException:
            await self._end(slot)
            raise
        finally:
            self._num_starting -= 1

    async def _load(self, slot: _ProcessSlot) -> str | None:
        """Start the process of a slot; why its code could not be loaded, or None."""
        settings = self._settings
        try:
            slot.child = await ChildProcess[Answer].start(
                CHILD, self._reference, ANSWERS, memory_bytes=settings.memory_bytes, environ=os.environ
            )
            answer = await slot.child.first_answer(deadline_s=settings.start_deadline_s)
        except LateError as late:
            failed = f"it was not loaded within {settings.start_deadline_s:g} s{_at(late.where)}"
        except EndedError as ended:
            failed = f"{ended.what}{_at(ended.where)}"
        except (TidegateError, OSError) as error:
            failed = str(error)
        except BaseException:
            await self._end(slot)
            raise
        else:
            if isinstance(answer, Ready):
                self.where = answer.where
                return None
            failed = answer.why if isinstance(answer, Failed) else "it answered before it was asked"
        await self._end(slot)
        return failed

    async def _end(self, slot: _ProcessSlot) -> None:
        child, slot.child = slot.child, None
        if child is not None:
            await child.close()


def _at(where: str) -> str:
    return f", at {where}" if where else ""


def _judgement(answer: Answer) -> Judgement:
    match answer:
        case Scored():
            return Score(answer.reward, answer.components, answer.log)
        case Failed():
            return VerifierFailed(
                answer.why,
                kind=answer.kind,
                where=answer.where,
                traceback=answer.traceback,
                retryable=answer.retryable,
                retry_after_s=answer.retry_after_s,
            )
        case Ready() | Replied():
            return failed_at("RecordError", "its process answered out of turn")
