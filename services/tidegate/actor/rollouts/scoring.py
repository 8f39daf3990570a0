"""Scoring completions by environment workers, a bounded number in one call."""

from collections.abc import Sequence
from typing import Protocol

from tidegate.actor.rollouts.workers_in_turn import WorkersInTurn, environment_workers
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import Completion, RewardedCompletion

SCORES_PER_CALL = 512


class ScoresCompletions(Protocol):
    """A client of the environment service, or a fake of one."""

    async def score(self, env_id: str, completions: Sequence[Completion]) -> list[RewardedCompletion]:
        """Verdicts in the order of the completions, which are of one environment."""
        ...


class AnyWorker:
    """Scores by whichever worker answers (``workers_in_turn``)."""

    def __init__(self, workers: Sequence[ScoresCompletions], *, first: int = 0) -> None:
        """See ``WorkersInTurn``."""
        self._workers = WorkersInTurn(workers, first=first)

    async def score(self, env_id: str, completions: Sequence[Completion]) -> list[RewardedCompletion]:
        """See ``ScoresCompletions``.

        Raises:
            TidegateError: no worker answers, or one of them refuses the call.
        """
        return await self._workers.ask(lambda worker: worker.score(env_id, completions))


def any_worker(context: ServiceContext) -> AnyWorker:
    """All environment workers of a run."""
    return AnyWorker(environment_workers(context), first=context.index)


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
