"""Sums as chat: the form shown twice, exactly the right equation, and a little for its shape."""

import json

import pytest

from tidegate.environment.tasks.port import Problem
from tidegate.environment.tasks.sums import Sums

TASK = Sums()
PROBLEM = Problem("23+31", "", "23 + 31 = 54", "carries-0")


def test_prompt_is_a_chat_that_shows_the_form_twice_and_asks() -> None:
    problem = next(problem for problem in TASK.problems("train", seed=0) if problem.prompt_id == "44+27")
    messages = json.loads(problem.prompt)
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[0]["content"] == "What is 14 + 5?"
    assert messages[1]["content"] == "14 + 5 = 19"
    assert messages[-1]["content"] == "What is 44 + 27?"
    assert (problem.answer, problem.bin) == ("44 + 27 = 71", "carries-1")


def test_problems_shown_as_examples_are_never_asked() -> None:
    asked = {problem.prompt_id for split in ("train", "heldout") for problem in TASK.problems(split, seed=0)}
    assert len(asked) == 2498
    assert not asked & {"14+5", "8+27"}


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("23 + 31 = 54", 1.0),
        ("23 + 31 = 55", 0.1),
        ("31 + 23 = 54", 0.1),
        ("23 + 31 = 54.", 0.0),
        ("23 + 31 = 54\n", 0.0),
        (" 23 + 31 = 54", 0.0),
        ("54", 0.0),
        ("23+31=54", 0.0),
        ("23 + 31 = 54\N{HORIZONTAL ELLIPSIS}", 0.0),
        ("२३ + 31 = 54", 0.0),
    ],
)
def test_only_the_right_equation_is_worth_one_and_only_an_equation_a_little(
    completion: str, reward: float
) -> None:
    assert TASK.score(PROBLEM, completion).reward == reward
