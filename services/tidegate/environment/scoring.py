"""Scoring: verifiers behind a cache and a deadline. A verifier's result is always a score or a failure."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tidegate.core.errors import TidegateError
from tidegate.environment.judgements import (
    Judgement,
    NoScoreError,
    VerifierFailed,
    failed_at,
    failure_of_exception,
    score_of,
)
from tidegate.environment.own_code.pool import OwnCodePool
from tidegate.environment.own_code.tasks import OwnTasks
from tidegate.environment.state import AnsweredProblem, ScoreCache
from tidegate.environment.tasks.port import Score, TextTask
from tidegate.environment.verifiers.port import Verifier, VerifierBusyError
from tidegate.runtime.clock import Clock
from tidegate.runtime.retrying import Backoff, UntilCancelled, retry
from tidegate.wire.bounds import MAGNITUDE_MAX, is_summable

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
        return failure_of_exception(error)
    retry_after_s = error.retry_after_s if isinstance(error, VerifierBusyError) else 0.0
    return VerifierFailed(
        str(error), kind=type(error).__name__, retryable=error.retryable, retry_after_s=retry_after_s
    )


def checked(answer: object) -> Judgement:
    """What a verifier returned, as a score; a failure where no learner can compute with it."""
    if isinstance(answer, VerifierFailed):
        return answer
    try:
        score = score_of(answer)
    except NoScoreError as error:
        return failed_at(error.kind, str(error))
    for number in (score.reward, *score.components.values()):
        if not is_summable(number):
            return VerifierFailed(
                f"it gave the reward {number}, and a reward is finite and below {MAGNITUDE_MAX:g} in size",
                kind="range",
            )
    return score


async def judged_by(verifier: Verifier, answer: AnsweredProblem) -> Judgement:
    """What one verifier judges; a failure where its code raises."""
    try:
        return checked(await verifier.score(answer.problem, answer.completion))
    except Exception as error:  # a verifier is third-party code: any exception is a failure of its score
        return failure_of(error)


class Scorer:
    """Judges completions by the verifiers of their tasks.

    Tasks of this package answer in microseconds and are called in the event loop, one after the other. Tasks of
    one's own are asked through ``own``, in child processes.
    """

    def __init__(
        self,
        task_of: Callable[[str], TextTask],
        cache: ScoreCache,
        clock: Clock,
        *,
        deadline_s: float,
        attempts: int = 1,
        own: OwnTasks | None = None,
    ) -> None:
        """``task_of`` raises ``NotFoundError`` for an environment that it does not know."""
        self._task_of = task_of
        self._cache = cache
        self._clock = clock
        self._deadline_s = deadline_s
        self._attempts = attempts
        self._own = own
        self.cache_hits_total = 0

    async def judge(self, env_id: str, answers: Sequence[AnsweredProblem]) -> list[Judgement]:
        """A judgement for each answer, in order.

        Raises:
            NotFoundError: there is no such text task.
            ConfigError: it is a task of one's own, and cannot be loaded.
        """
        task = None if self._own is not None and self._own.holds(env_id) else self._task_of(env_id)
        judgements: list[Judgement | None] = [self._cache.get(env_id, answer) for answer in answers]
        missing = [index for index, judgement in enumerate(judgements) if judgement is None]
        self.cache_hits_total += len(answers) - len(missing)
        fresh = await self._fresh(env_id, task, [answers[index] for index in missing]) if missing else []
        for index, judgement in zip(missing, fresh, strict=True):
            judgements[index] = judgement
            if isinstance(judgement, Score):
                self._cache.put(env_id, answers[index], judgement)
        return [judgement for judgement in judgements if judgement is not None]

    async def _fresh(
        self, env_id: str, task: TextTask | None, answers: Sequence[AnsweredProblem]
    ) -> list[Judgement]:
        pool = None if self._own is None else await self._own.pool_of(env_id)
        if pool is not None:
            return await asyncio.gather(*(self._asked(pool, answer) for answer in answers))
        assert task is not None, "the run's own task has a pool"
        # In sequence anyway: asyncio tasks would only add cost.
        return [await self._judged(task, answer) for answer in answers]

    async def _judged(self, task: TextTask, answer: AnsweredProblem) -> Judgement:
        async def ask() -> Judgement:
            return self._call(task, answer)

        return await attempted(ask, attempts=self._attempts)

    async def _asked(self, pool: OwnCodePool, answer: AnsweredProblem) -> Judgement:
        async def ask() -> Judgement:
            return checked(await pool.score(answer.problem, answer.completion))

        return await attempted(ask, attempts=self._attempts)

    def _call(self, task: TextTask, answer: AnsweredProblem) -> Judgement:
        started_at_s = self._clock.monotonic_s()
        try:
            score = task.score(answer.problem, answer.completion)
        except Exception as error:  # whatever a task raises is a failure of its score
            return failure_of(error)
        took_s = self._clock.monotonic_s() - started_at_s
        if took_s > self._deadline_s:
            return VerifierFailed(
                f"it took {took_s:.3g} s, the deadline is {self._deadline_s:g} s", kind="deadline"
            )
        return checked(score)
