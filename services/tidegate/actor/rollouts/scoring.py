"""Scoring completions by environment workers, a bounded number in one call."""

from collections.abc import Sequence

from tidegate.wire.clients.environment import Completion, EnvironmentClient, RewardedCompletion

SCORES_PER_CALL = 512


async def score_all(
    environment: EnvironmentClient, env_id: str, completions: Sequence[Completion]
) -> list[RewardedCompletion]:
    """The verdicts on any number of completions, in order, with a bounded number per call.

    Raises:
        UnavailableError: no environment worker answers.
    """
    scored: list[RewardedCompletion] = []
    for start in range(0, len(completions), SCORES_PER_CALL):
        scored += await environment.score(env_id, completions[start : start + SCORES_PER_CALL])
    return scored
