"""Completions of several environments are scored by each one's own verifier, and their verdicts keep their places."""

from collections.abc import Sequence

from tidegate.actor.rollouts.scoring import SCORES_PER_CALL, score_all
from tidegate.wire.clients.environment import Completion, RewardedCompletion


class Noting:
    """Rewards each completion with the number that it is; notes the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    async def score(self, env_id: str, completions: Sequence[Completion]) -> list[RewardedCompletion]:
        self.calls.append((env_id, len(completions)))
        return [RewardedCompletion(float(each.completion), {}, env_id) for each in completions]


async def test_verdicts_come_in_the_order_of_the_completions() -> None:
    noting = Noting()
    envs = ["a", "b", "a", "c", "b"]
    completions = [Completion(f"{n}", "", "", f"{n}", "all") for n in range(len(envs))]
    scored = await score_all(noting, envs, completions)
    assert [(each.reward, each.log) for each in scored] == [(float(n), env) for n, env in enumerate(envs)]
    assert noting.calls == [("a", 2), ("b", 2), ("c", 1)]


async def test_a_call_has_a_bounded_number_of_one_environment() -> None:
    noting, count = Noting(), SCORES_PER_CALL + 1
    completions = [Completion(f"{n}", "", "", f"{n}", "all") for n in range(count)]
    scored = await score_all(noting, ["a"] * count, completions)
    assert [each.reward for each in scored] == [float(n) for n in range(count)]
    assert noting.calls == [("a", SCORES_PER_CALL), ("a", 1)]
