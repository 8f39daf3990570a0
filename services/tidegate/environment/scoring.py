"""Scoring: verifiers behind a cache and a deadline. Whatever a verifier does, the answer is a score or a failure."""

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tidegate.environment.state import Answer, Judgement, ScoreCache, VerifierFailed
from tidegate.environment.tasks.port import Score, TextTask
from tidegate.runtime.clock import Clock


class Scorer:
    """Judges completions. With ``num_threads`` 0 verifiers run in the event loop, one after the other."""

    def __init__(
        self,
        task_of: Callable[[str], TextTask],
        cache: ScoreCache,
        clock: Clock,
        *,
        deadline_s: float,
        num_threads: int,
    ) -> None:
        """``task_of`` raises ``NotFoundError`` for an environment that it does not know."""
        self._task_of = task_of
        self._cache = cache
        self._clock = clock
        self._deadline_s = deadline_s
        # A slot is a thread: a verifier that hangs past its deadline keeps its slot until it ends.
        self._slots = asyncio.Semaphore(max(1, num_threads))
        self._num_threads = num_threads
        self._num_overdue = 0
        self._threads = (
            ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="verifier")
            if num_threads
            else None
        )
        self.cache_hits_total = 0
        self.failures_total = 0

    async def judge(self, env_id: str, answers: Sequence[Answer]) -> list[Judgement]:
        """A judgement for each answer, in order.

        Raises:
            NotFoundError: there is no such text task.
        """
        task = self._task_of(env_id)
        judgements: list[Judgement | None] = [self._cache.get(env_id, answer) for answer in answers]
        missing = [index for index, judgement in enumerate(judgements) if judgement is None]
        self.cache_hits_total += len(answers) - len(missing)
        if self._threads is None:
            fresh = [self._call(task, answers[index]) for index in missing]
        else:
            fresh = await asyncio.gather(
                *(self._in_thread(self._threads, task, answers[index]) for index in missing)
            )
        for index, judgement in zip(missing, fresh, strict=True):
            judgements[index] = judgement
            if isinstance(judgement, Score):
                self._cache.put(env_id, answers[index], judgement)
            else:
                self.failures_total += 1
        return [judgement for judgement in judgements if judgement is not None]

    def _call(self, task: TextTask, answer: Answer) -> Judgement:
        started_at_s = self._clock.monotonic_s()
        try:
            score = task.score(answer.problem, answer.completion)
        except Exception as error:  # a verifier is foreign code: whatever it raises is a failure of its score
            return VerifierFailed(repr(error))
        if not math.isfinite(score.reward):
            return VerifierFailed(f"it gave the reward {score.reward}")
        took_s = self._clock.monotonic_s() - started_at_s
        if took_s > self._deadline_s:
            return VerifierFailed(f"it took {took_s:.3g} s, the deadline is {self._deadline_s:g} s")
        return score

    async def _in_thread(self, threads: ThreadPoolExecutor, task: TextTask, answer: Answer) -> Judgement:
        if not await self._slot():
            return VerifierFailed("every verifier thread is taken by one that overran its deadline")
        future = asyncio.get_running_loop().run_in_executor(threads, self._call, task, answer)
        future.add_done_callback(lambda _: self._slots.release())
        try:
            return await asyncio.wait_for(asyncio.shield(future), timeout=self._deadline_s)
        except TimeoutError:
            self._num_overdue += 1
            future.add_done_callback(self._not_overdue)
            return VerifierFailed(f"it did not end within {self._deadline_s:g} s")

    async def _slot(self) -> bool:
        """Wait for a thread; false when all of them hang."""
        while True:
            try:
                await asyncio.wait_for(self._slots.acquire(), timeout=self._deadline_s)
                return True
            except TimeoutError:
                if self._num_overdue >= self._num_threads:
                    return False

    def _not_overdue(self, _future: object) -> None:
        self._num_overdue -= 1

    def close(self) -> None:
        """Start no more verifiers."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
