"""Verifiers behind a cache and a deadline."""

from collections.abc import Sequence

import pytest

from tidegate.core.errors import NotFoundError
from tidegate.environment.judgements import VerifierFailed
from tidegate.environment.scoring import Scorer
from tidegate.environment.state import AnsweredProblem, ScoreCache
from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.registry import get_task
from tidegate.runtime.clock import SystemClock


class Verifier:
    """A task controlled by its completion."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        raise AssertionError("scoring asks for no problems")

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        raise AssertionError("scoring asks for no demonstrations")

    def score(self, problem: Problem, completion: str) -> Score:
        self.calls.append(completion)
        match completion:
            case "raise":
                raise ZeroDivisionError("by zero")
            case "nan":
                return Score(float("nan"), {}, "")
            case "huge":
                return Score(1e300, {}, "")
            case "huge part":
                return Score(1.0, {"part": -3e38}, "")
            case _:
                return Score(float(completion == problem.answer), {}, completion)


class SteppingClock(SystemClock):
    """A monotonic clock that advances by ``step_s`` at each read."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        self._now_s += self._step_s
        return self._now_s


def answers(*texts: str) -> list[AnsweredProblem]:
    return [AnsweredProblem(Problem("p", "1+1=", "2", "all"), text) for text in texts]


def scorer(verifier: Verifier, *, deadline_s: float = 60.0, step_s: float = 0.0) -> Scorer:
    return Scorer(lambda _: verifier, ScoreCache(num_max=16), SteppingClock(step_s), deadline_s=deadline_s)


@pytest.mark.parametrize(("answer", "number"), [("huge", "1e+300"), ("huge part", "-3e+38")])
async def test_finite_reward_that_float32_cannot_sum_is_a_failure_that_names_it(
    answer: str, number: str
) -> None:
    (judgement,) = await scorer(Verifier()).judge("any", answers(answer))
    assert isinstance(judgement, VerifierFailed)
    assert number in judgement.why


async def test_answers_are_judged_in_order_and_asked_once() -> None:
    verifier = Verifier()
    judge = scorer(verifier)
    first = await judge.judge("any", answers("2", "3"))
    again = await judge.judge("any", answers("3", "4", "2"))
    assert [judgement.reward for judgement in first if isinstance(judgement, Score)] == [1.0, 0.0]
    assert [judgement.log for judgement in again if isinstance(judgement, Score)] == ["3", "4", "2"]
    assert verifier.calls == ["2", "3", "4"]
    assert judge.cache_hits_total == 2


async def test_verifier_that_raises_or_gives_no_number_fails_alone_and_is_asked_again() -> None:
    verifier = Verifier()
    judge = scorer(verifier)
    raised, nan, good = await judge.judge("any", answers("raise", "nan", "2"))
    assert isinstance(raised, VerifierFailed)
    assert "ZeroDivisionError" in raised.why
    assert isinstance(nan, VerifierFailed)
    assert isinstance(good, Score)
    await judge.judge("any", answers("raise"))
    assert verifier.calls.count("raise") == 2


async def test_verifier_in_the_loop_that_overran_its_deadline_failed() -> None:
    judge = scorer(Verifier(), deadline_s=1.0, step_s=1.5)
    [late] = await judge.judge("any", answers("2"))
    assert late == VerifierFailed("it took 1.5 s, the deadline is 1 s", kind="deadline")


async def test_unknown_text_task_is_the_callers_error() -> None:
    judge = Scorer(get_task, ScoreCache(num_max=1), SystemClock(), deadline_s=1.0)
    with pytest.raises(NotFoundError, match="no text task 'nowhere'"):
        await judge.judge("nowhere", answers("2"))
