"""Scoring: verifiers behind a cache and a deadline. A verifier's result is always a score or a failure."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tidegate.core.errors import TidegateError
from tidegate.environment.state import AnsweredProblem, Judgement, ScoreCache, VerifierFailed
from tidegate.environment.tasks.port import Score, TextTask
from tidegate.environment.verifiers.port import VerifierBusyError
from tidegate.runtime.clock import Clock
from tidegate.runtime.retrying import Backoff, UntilCancelled, retry
from tidegate.wire.bounds import is_summable

BACKOFF = Backoff(start_s=0.3, max_s=10.0)


class _FailedError(TidegateError):
    """A verifier failed and may not fail again."""

    retryable = True

    def __init__(self, judgement: VerifierFailed) -> None:
        super().__init__("A verifier failed", why=judgement.why)
        self.judgement = judgement
        self.retry_after_s = judgement.retry_after_s


async def attempted(ask: Callable[[], Awaitable[Judgement]], *, attempts: int) -> Judgement:
    """The first score, or the last failure, of at most ``attempts`` tries; a permanent failure is not retried."""

    async def once() -> Judgement:
        judgement = await ask()
        if isinstance(judgement, VerifierFailed) and judgement.retryable:
            raise _FailedError(judgement)
        return judgement

    try:
        return await retry(once, BACKOFF, attempts=attempts, draining=UntilCancelled())
    except _FailedError as failed:
        return failed.judgement


def failure_of(error: Exception) -> VerifierFailed:
    """What a verifier raised, as a judgement."""
    if not isinstance(error, TidegateError):
        return VerifierFailed(repr(error))
    retry_after_s = error.retry_after_s if isinstance(error, VerifierBusyError) else 0.0
    return VerifierFailed(str(error), retryable=error.retryable, retry_after_s=retry_after_s)


def checked(score: Score) -> Judgement:
    """A score, unless its reward or a part of it is nothing that a learner can compute with."""
    for number in (score.reward, *score.components.values()):
        if not is_summable(number):
            return VerifierFailed(f"it gave the reward {number}")
    return score


class Scorer:
    """Judges completions by the verifiers of their tasks.

    With ``num_threads`` 0 verifiers run in the event loop, one after the other.
    """

    def __init__(
        self,
        task_of: Callable[[str], TextTask],
        cache: ScoreCache,
        clock: Clock,
        *,
        deadline_s: float,
        num_threads: int,
        attempts: int = 1,
    ) -> None:
        """``task_of`` raises ``NotFoundError`` for an environment that it does not know."""
        self._task_of = task_of
        self._cache = cache
        self._clock = clock
        self._deadline_s = deadline_s
        self._attempts = attempts
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

    async def judge(self, env_id: str, answers: Sequence[AnsweredProblem]) -> list[Judgement]:
        """A judgement for each answer, in order.

        Raises:
            NotFoundError: there is no such text task.
        """
        task = self._task_of(env_id)
        judgements: list[Judgement | None] = [self._cache.get(env_id, answer) for answer in answers]
        missing = [index for index, judgement in enumerate(judgements) if judgement is None]
        self.cache_hits_total += len(answers) - len(missing)
        asked = (self._judged(task, answers[index]) for index in missing)
        # Without threads verifiers run in sequence anyway; asyncio tasks would only add cost.
        fresh = await asyncio.gather(*asked) if self._threads else [await judged for judged in asked]
        for index, judgement in zip(missing, fresh, strict=True):
            judgements[index] = judgement
            if isinstance(judgement, Score):
                self._cache.put(env_id, answers[index], judgement)
            else:
                self.failures_total += 1
        return [judgement for judgement in judgements if judgement is not None]

    async def _judged(self, task: TextTask, answer: AnsweredProblem) -> Judgement:
        threads = self._threads

        async def ask() -> Judgement:
            return (
                self._call(task, answer) if threads is None else await self._in_thread(threads, task, answer)
            )

        return await attempted(ask, attempts=self._attempts)

    def _call(self, task: TextTask, answer: AnsweredProblem) -> Judgement:
        started_at_s = self._clock.monotonic_s()
        try:
            score = task.score(answer.problem, answer.completion)
        except Exception as error:  # a verifier is third-party code: any exception is a failure of its score
            return failure_of(error)
        took_s = self._clock.monotonic_s() - started_at_s
        if took_s > self._deadline_s:
            return VerifierFailed(f"it took {took_s:.3g} s, the deadline is {self._deadline_s:g} s")
        return checked(score)

    async def _in_thread(
        self, threads: ThreadPoolExecutor, task: TextTask, answer: AnsweredProblem
    ) -> Judgement:
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
