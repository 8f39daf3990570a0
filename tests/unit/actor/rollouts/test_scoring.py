"""Completions of several environments are scored by each one's own verifier, and their verdicts keep their places."""

from collections.abc import Sequence

import pytest

from tidegate.actor.rollouts.scoring import CALL_BYTES_MAX, SCORES_PER_CALL, AnyWorker, score_all
from tidegate.core.errors import RecordError, TidegateError, UnavailableError
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


async def test_a_call_has_bounded_texts() -> None:
    noting = Noting()
    long = "\N{SNOWMAN}" * (CALL_BYTES_MAX // 10)  # of three bytes each
    sizes = [long, long, long, long, "", 4 * long, "", long]
    completions = [Completion(f"{n}", text, "", f"{n}", "all") for n, text in enumerate(sizes)]
    scored = await score_all(noting, ["a"] * len(sizes), completions)
    assert [each.reward for each in scored] == [float(n) for n in range(len(sizes))]
    assert noting.calls == [("a", 3), ("a", 2), ("a", 1), ("a", 2)]


class Failing(Noting):
    """Answers every call with an error."""

    def __init__(self, error: TidegateError) -> None:
        super().__init__()
        self._error = error

    async def score(self, env_id: str, completions: Sequence[Completion]) -> list[RewardedCompletion]:
        await super().score(env_id, completions)
        raise self._error


ONE = [Completion("0", "", "", "1", "all")]


async def test_calls_go_to_the_workers_in_turn_and_past_those_that_are_away() -> None:
    away, one, two = Failing(UnavailableError("away")), Noting(), Noting()
    workers = AnyWorker([away, one, two], first=3)
    for _ in range(4):
        [verdict] = await workers.score("a", ONE)
        assert verdict.reward == 1.0
    assert [len(worker.calls) for worker in (away, one, two)] == [2, 3, 1]


async def test_call_fails_once_every_worker_was_asked_and_at_once_where_a_repeat_cannot_help() -> None:
    away = [Failing(UnavailableError(f"away {number}")) for number in range(2)]
    with pytest.raises(UnavailableError, match="away 1"):
        await AnyWorker(away).score("a", ONE)
    refusing, other = Failing(RecordError("no such environment")), Noting()
    with pytest.raises(RecordError):
        await AnyWorker([refusing, other]).score("a", ONE)
    assert other.calls == []
