"""Rewards: a task's own score and those of the run's other verifiers, with retries, weighted into one.

Each part is cached separately, so that a failed verifier causes no second request to the others.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from tidegate.core.curriculum import uniform_fraction
from tidegate.core.distributions import Distribution, slowest_quantile
from tidegate.core.errors import RecordError
from tidegate.environment.config import EnvironmentConfig, times_of
from tidegate.environment.judgements import Judgement, why_failed
from tidegate.environment.scoring import Scorer, attempted, checked, judged_by
from tidegate.environment.session_envs import SessionVerdict
from tidegate.environment.state import (
    TASK,
    AnsweredProblem,
    OnError,
    ProblemOf,
    ScoreCache,
    combined,
    resolve_failure,
)
from tidegate.environment.tasks.port import Score
from tidegate.environment.verifiers.port import Verifier


class VerdictReports(Protocol):
    """Takes verdicts by the name of their verifier; in the service ``failures.FailureReports`` counts and logs them."""

    def judged(self, parts: Mapping[str, Sequence[Judgement]], answers: Sequence[AnsweredProblem]) -> None:
        """One verdict of each verifier on each answer."""
        ...


class Rewards:
    """Computes rewards of completions and of whole episodes."""

    def __init__(
        self,
        scorer: Scorer,
        verifiers: Mapping[str, Verifier],
        config: EnvironmentConfig,
        reports: VerdictReports,
        *,
        seed: int,
        problem_of: ProblemOf | None = None,
    ) -> None:
        """``scorer`` knows the tasks; ``verifiers`` are those of ``config`` by name, started; ``seed`` is the run's.

        ``problem_of``: the problem of an environment as the environment itself wrote it; None: as it came.
        """
        self._problem_of = problem_of
        self._reports = reports
        self._scorer = scorer
        self._verifiers = verifiers
        self._weights = config.weights()
        self._on_error: OnError = config.on_error
        self._partial_credit = config.partial_credit if config.on_error == "partial" else None
        self._attempts = config.score_attempts
        self._cache = ScoreCache(num_max=config.cache_entries)
        self._latency: Distribution = times_of(config.score_latency)
        self._seed = seed
        self._cache_hits_total = 0

    @property
    def cache_hits_total(self) -> int:
        """Verdicts found in the cache."""
        return self._scorer.cache_hits_total + self._cache_hits_total

    async def judge(self, env_id: str, answers: Sequence[AnsweredProblem]) -> list[Judgement]:
        """A judgement for each answer, in order; equal answers are scored once.

        Raises:
            NotFoundError: there is no such text task.
        """
        if self._problem_of is not None:
            answers = [
                AnsweredProblem(self._problem_of(env_id, answer.problem), answer.completion)
                for answer in answers
            ]
        asked = list(dict.fromkeys(answers))
        by_part: dict[str, list[Judgement]] = {}
        if TASK in self._weights:
            by_part[TASK] = await self._scorer.judge(env_id, asked)
        by_part |= await self._others(asked)
        self._reports.judged(by_part, asked)
        judgement_of = {
            answer: self._combined({name: judgements[index] for name, judgements in by_part.items()})
            for index, answer in enumerate(asked)
        }
        return [judgement_of[answer] for answer in answers]

    async def of_episode(self, verdict: SessionVerdict) -> Score:
        """The reward of a whole episode, whose turns and replies are the completion that other verifiers read.

        Raises:
            RecordError: a verifier failed, and the run drops such episodes; trying again gives no other verdict.
        """
        answer = verdict.answer
        by_part: dict[str, list[Judgement]] = {}
        if TASK in self._weights:
            by_part[TASK] = [checked(verdict.score)]
        by_part |= await self._others([answer])
        self._reports.judged(by_part, [answer])
        judgement = self._combined({name: judgements[0] for name, judgements in by_part.items()})
        await asyncio.sleep(self.delay_s(answer.problem.prompt_id, answer.completion, num=1))
        score = resolve_failure(judgement, on_error=self._on_error)
        if score is None:
            raise RecordError(
                "A verifier of an episode failed, and environment.on_error is drop",
                why=why_failed(judgement),
            )
        return score

    def delay_s(self, *key: str, num: int) -> float:
        """How long scoring takes at least: the slowest of ``num`` draws, the same for the same key in every run."""
        return slowest_quantile(self._latency, uniform_fraction(self._seed, "score latency", *key), num=num)

    async def _others(self, answers: Sequence[AnsweredProblem]) -> dict[str, list[Judgement]]:
        names = list(self._verifiers)
        judgements = await asyncio.gather(
            *(self._asked(name, self._verifiers[name], answer) for name in names for answer in answers)
        )
        return {
            name: judgements[index * len(answers) : (index + 1) * len(answers)]
            for index, name in enumerate(names)
        }

    async def _asked(self, name: str, verifier: Verifier, answer: AnsweredProblem) -> Judgement:
        known = self._cache.get(name, answer)
        if known is not None:
            self._cache_hits_total += 1
            return known

        judgement = await attempted(partial(judged_by, verifier, answer), attempts=self._attempts)
        if isinstance(judgement, Score):
            self._cache.put(name, answer, judgement)
        return judgement

    def _combined(self, parts: Mapping[str, Judgement]) -> Judgement:
        return combined(parts, self._weights, partial_credit=self._partial_credit)
