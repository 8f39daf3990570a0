"""Scoring completions by environment workers, a bounded number in one call."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from tidegate.actor.rollouts.workers_in_turn import WorkersInTurn, environment_workers
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import Completion, RewardedCompletion

SCORES_PER_CALL = 512
# Of the texts of one call: half of what a message may hold (``runtime.rpc.MESSAGE_BYTES_MAX``). 512 answers of 4,000
# tokens are more.
CALL_BYTES_MAX = 4 * 1024 * 1024


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
    """The verdicts on any number of completions, in order, with a bounded number and size per call.

    ``env_ids``: the environment of each; a call is of one.

    Raises:
        UnavailableError: no environment worker answers.
    """
    scored: dict[int, RewardedCompletion] = {}
    for env_id in dict.fromkeys(env_ids):
        indices = [index for index, each in enumerate(env_ids) if each == env_id]
        for asked in _calls(indices, completions):
            found = await environment.score(env_id, [completions[index] for index in asked])
            scored.update(zip(asked, found, strict=True))
    return [scored[index] for index in range(len(completions))]


def _calls(indices: Sequence[int], completions: Sequence[Completion]) -> Iterator[list[int]]:
    """The indices of each call, in order; one completion that is larger than the bound is a call alone."""
    call: list[int] = []
    num_bytes = 0
    for index in indices:
        each = completions[index]
        size = sum(len(text.encode()) for text in (each.prompt, each.answer, each.completion))
        if call and (len(call) == SCORES_PER_CALL or num_bytes + size > CALL_BYTES_MAX):
            yield call
            call, num_bytes = [], 0
        call.append(index)
        num_bytes += size
    if call:
        yield call
