"""The calculator: calls, malformed and failed ones, and the answer."""

import pytest

from tidegate.core.distributions import Fixed
from tidegate.environment.conversations.calculator import (
    TURNS_MAX,
    Calculator,
    CalculatorEpisode,
    reference_turns,
)
from tidegate.environment.conversations.port import ToolUse
from tidegate.environment.conversations.tools import NO_TOOLS, Conditions, Tools
from tidegate.environment.tasks.expressions import evaluate
from tidegate.environment.tasks.port import Problem

PROBLEM = Problem("12*(3+45)-7", "12*(3+45)-7=", "569", "signs-3")


def episode(tools: Tools = NO_TOOLS, *, seed: int = 0) -> CalculatorEpisode:
    return Calculator().begin(PROBLEM, seed=seed, tools=tools)


def test_episode_of_the_reference_asks_step_by_step() -> None:
    assert reference_turns(PROBLEM) == ["[3+45]", "[12*48]", "[576-7]", "569"]
    game = episode()
    assert [game.reply(text).observation for text in ("[3+45]", "[12*48]", "[576-7]")] == ["48", "576", "569"]
    end = game.reply("569")
    assert end.score is not None
    assert end.score.components == {"exact": 1.0, "steps": 1.0}


@pytest.mark.parametrize(
    "text", ["[3+45", "[3 + 45]", "[3/45]", "[3+45]]", "[-3+45]", "[3+45]=48", "[]", "[9999999+1]", "[3**45]"]
)
def test_malformed_call_is_answered_by_a_question_mark_and_costs_a_turn(text: str) -> None:
    turn = episode().reply(text)
    assert (turn.observation, turn.done) == ("?", False)
    assert turn.tools == (ToolUse("calculator", text, "?"),)


@pytest.mark.parametrize("text", ["570", "", "569 ", " 569", "0569", "568", "569=569", "answer 569"])
def test_wrong_answer_is_worth_only_the_steps_that_were_asked_for(text: str) -> None:
    game = episode()
    game.reply("[3+45]")
    score = game.reply(text).score
    assert score is not None
    assert score.reward == pytest.approx(0.2 / 3)
    assert score.components == {"exact": 0.0, "steps": pytest.approx(1 / 3)}


def test_calls_that_were_not_needed_are_worth_nothing() -> None:
    game = episode()
    for _ in range(3):
        game.reply("[1+1]")
    score = game.reply("0").score
    assert score is not None
    assert score.reward == 0.0


def test_episode_without_an_answer_is_cut_off() -> None:
    game = episode()
    turns = [game.reply("[3+45]") for _ in range(TURNS_MAX)]
    assert [turn.done for turn in turns] == [False] * (TURNS_MAX - 1) + [True]
    assert turns[-1].truncated
    assert turns[-1].score is not None
    assert turns[-1].score.reward == pytest.approx(0.2 / 3)


def test_injected_failures_and_waits_are_those_of_the_seed() -> None:
    tools = Tools(conditions=Conditions(latency=Fixed(2.5), error_share=0.5))
    answers = {
        seed: [episode(tools, seed=seed).reply("[3+45]").observation for _ in range(2)] for seed in range(40)
    }
    assert all(first == second for first, second in answers.values())
    failed = sum(first == "error" for first, _ in answers.values())
    assert 8 <= failed <= 32
    assert episode(tools).reply("[3+45]").delay_s == 2.5
    failing = episode(Tools(conditions=Conditions(error_share=1.0)))
    failing.reply("[3+45]")
    score = failing.reply("0").score
    assert score is not None
    assert score.components["steps"] == 0.0, "a failed call gives no information"


@pytest.mark.slow
def test_every_problem_can_be_worked_out_by_calls_that_the_tool_answers() -> None:
    for problem in Calculator().problems("heldout", seed=0)[:400]:
        *calls, answer = reference_turns(problem)
        assert problem.bin == f"signs-{len(calls)}"
        assert evaluate(problem.prompt.removesuffix("=")).value == int(answer)
        game = Calculator().begin(problem, seed=0, tools=NO_TOOLS)
        assert all(game.reply(call).observation.isdigit() for call in calls)
