"""Scoring completions by environment workers, a bounded number in one call."""

import itertools
from collections.abc import Sequence
from typing import Protocol

from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import Completion, EnvironmentClient, RewardedCompletion

SCORES_PER_CALL = 512


class ScoresCompletions(Protocol):
    """A client of the environment service, or a fake of one."""

    async def score(self, env_id: str, completions: Sequence[Completion]) -> list[RewardedCompletion]:
        """Verdicts in the order of the completions, which are of one environment."""
        ...


class AnyWorker:
    """The environment workers of a run as one: calls go to them in turn, and on to the others while one is away."""

    def __init__(self, workers: Sequence[ScoresCompletions], *, first: int = 0) -> None:
        """``workers``: at least one. ``first``: whom the first call goes to, so that actors begin apart."""
        self._workers = workers
        self._turn = itertools.count(first)

    async def score(self, env_id: str, completions: Sequence[Completion]) -> list[RewardedCompletion]:
        """See ``ScoresCompletions``.

        Raises:
            UnavailableError: no worker answers.
            TidegateError: one of them refuses the call.
        """
        failure: TidegateError = UnavailableError("No environment worker was asked")
        first, count = next(self._turn), len(self._workers)
        for number in range(first, first + count):
            try:
                return await self._workers[number % count].score(env_id, completions)
            except TidegateError as error:
                if not error.retryable:
                    raise
                failure = error
        raise failure


def any_worker(context: ServiceContext) -> AnyWorker:
    """All environment workers of a run."""
    count = len(context.settings.addresses["environment"])
    workers = [EnvironmentClient(context.channel("environment", index)) for index in range(count)]
    return AnyWorker(workers, first=context.index)


async def score_all(
    environment: ScoresCompletions, env_ids: Sequence[str], completions: Sequence[Completion]
) -> list[RewardedCompletion]:
    """The verdicts on any number of completions, in order, with a bounded number per call.

    ``env_ids``: the environment of each; a call is of one.

    Raises:
        UnavailableError: no environment worker answers.
    """
    scored: dict[int, RewardedCompletion] = {}
    for env_id in dict.fromkeys(env_ids):
        indices = [index for index, each in enumerate(env_ids) if each == env_id]
        for start in range(0, len(indices), SCORES_PER_CALL):
            asked = indices[start : start + SCORES_PER_CALL]
            found = await environment.score(env_id, [completions[index] for index in asked])
            scored.update(zip(asked, found, strict=True))
    return [scored[index] for index in range(len(completions))]
