"""Asks the child process of a curriculum: one question at a time, each with a deadline; a late or dead one is replaced.

Bounded: one process, which the next question starts again after a pause that grows with its deaths.
"""

import asyncio
from collections.abc import Iterator, Mapping

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.runtime.own_code.failures import TRACEBACK_CHARS_MAX, sentence_of
from tidegate.runtime.own_code.process import ChildProcess, EndedError, LateError
from tidegate.runtime.own_code.references import OwnReference
from tidegate.runtime.retrying import Backoff
from tidegate.task_queue.own_curriculum.messages import (
    ANSWERS,
    CHILD,
    Answer,
    CurriculumReady,
    Weighed,
    WeightsFailed,
    WeightsQuestion,
)

BACKOFF = Backoff(start_s=0.5, max_s=30.0)
# As much as a verifier has: libraries such as torch reserve gigabytes.
MEMORY_BYTES = 4 << 30


class CurriculumDeadlines(msgspec.Struct, frozen=True):
    """Seconds for one answer, and for loading the code."""

    answer_s: float
    start_s: float


class CurriculumProcess:
    """The process of one reference; ``close`` it."""

    def __init__(
        self, reference: OwnReference, deadlines: CurriculumDeadlines, *, environ: Mapping[str, str]
    ) -> None:
        """Starts nothing."""
        self._reference = reference
        self._deadlines = deadlines
        self._environ = environ
        self._child: ChildProcess[Answer] | None = None
        self._where = ""
        self._pauses_s: Iterator[float] | None = None

    async def weigh(self, question: WeightsQuestion) -> Weighed | WeightsFailed:
        """The answer of the code, or why there is none; after a pause where its process died before."""
        try:
            child = self._child
            if child is None or not child.is_alive:
                failed = await self._start()
                if failed is not None:
                    return failed
            assert self._child is not None, "it was started"
            answer = await self._child.ask(question, deadline_s=self._deadlines.answer_s)
        except LateError as late:
            await self._lost()
            return self._failed("deadline", late.what, where=late.where, trace=late.stack)
        except EndedError as ended:
            await self._lost()
            return self._failed("ended", ended.what, where=ended.where, trace=ended.printed)
        except (TidegateError, OSError) as error:
            await self._lost()
            return self._failed(type(error).__name__, str(error))
        if isinstance(answer, CurriculumReady):
            await self._lost()
            return self._failed("RecordError", "its process answered out of turn")
        if isinstance(answer, Weighed):
            self._pauses_s = None
        return answer

    async def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            await child.close()

    async def _start(self) -> WeightsFailed | None:
        """Start the process; why its code could not be loaded, or None. Raises as ``ChildProcess.ask``."""
        await self.close()
        self._where = ""  # one that dies before its code is loaded did not die in it
        if self._pauses_s is not None:
            await asyncio.sleep(next(self._pauses_s))
        self._child = await ChildProcess[Answer].start(
            CHILD, self._reference, ANSWERS, memory_bytes=MEMORY_BYTES, environ=self._environ
        )
        answer = await self._child.first_answer(deadline_s=self._deadlines.start_s)
        if isinstance(answer, CurriculumReady):
            self._where = answer.where
            return None
        await self._lost()
        return (
            answer
            if isinstance(answer, WeightsFailed)
            else self._failed("RecordError", "it answered unasked")
        )

    async def _lost(self) -> None:
        await self.close()
        if self._pauses_s is None:
            self._pauses_s = BACKOFF.pauses_s()

    def _failed(self, kind: str, message: str, *, where: str = "", trace: str = "") -> WeightsFailed:
        place = where or self._where
        return WeightsFailed(
            kind, sentence_of(kind, message, where=place), place, trace[-TRACEBACK_CHARS_MAX:]
        )
