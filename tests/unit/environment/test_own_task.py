"""What a user may write as a task, and what the platform makes of it."""

from collections.abc import Sequence
from typing import Any

import pytest

from tidegate.core.errors import ConfigError
from tidegate.environment.judgements import NoScoreError
from tidegate.environment.own_code.own_task import OwnTask
from tidegate.environment.tasks.port import Demonstration, Problem, Score
from tidegate.runtime.own_code.references import OwnReference

REFERENCE = OwnReference("my_task.py:Task", "/somewhere/my_task.py", "Task")
PROBLEM = Problem("one", "1+1=", "2", "all")
PAIRS = [(f"{number}+1=", str(number + 1)) for number in range(40)]


def score(prompt: str, completion: str, answer: str) -> float:
    return float(completion == answer) + len(prompt)


def of_one(completion: str) -> float:
    return 1.0


def of_two(problem: Problem, completion: str) -> float:
    return 1.0


class Pairs:
    def problems(self) -> Sequence[Any]:
        return PAIRS

    def score(self, problem: Problem, completion: str) -> Score:
        return Score(float(completion == problem.answer), {}, "")


class Twenty:
    """Guess a number in two turns."""

    def begin(self, problem: Problem, seed: int) -> "Twenty":
        self.answer, self.opening = problem.answer, problem.prompt
        return self

    def reply(self, text: str) -> str | float:
        return "again" if text == "?" else float(text == self.answer)


def test_function_is_a_task_without_problems() -> None:
    task = OwnTask(score, REFERENCE)
    assert task.call(PROBLEM, "2") == 5.0
    assert not task.is_conversation
    assert task.where.endswith("in score")
    with pytest.raises(ConfigError, match=r"has no prompts.*set workload.dataset"):
        task.problems("train", seed=0)


def test_class_with_pairs_holds_a_fifth_out_and_demonstrates_its_answers() -> None:
    task = OwnTask(Pairs, REFERENCE)
    splits = {name: {each.prompt for each in task.problems(name, seed=1)} for name in ("train", "heldout")}
    assert splits["train"] | splits["heldout"] == {prompt for prompt, _ in PAIRS}
    assert not splits["train"] & splits["heldout"]
    shown = task.demonstrations(seed=1, count=50)
    assert len(shown) == 50
    assert {each.prompt for each in shown} == splits["train"], "never a held-out one"
    assert all((each.prompt, each.completion) in PAIRS for each in shown)


def test_demonstrations_of_its_own_come_first() -> None:
    class Shows(Pairs):
        def demonstrations(self, *, seed: int, count: int) -> list[Demonstration]:
            return [Demonstration("1+1=", "two")] * count

    assert OwnTask(Shows, REFERENCE).demonstrations(seed=0, count=2) == [Demonstration("1+1=", "two")] * 2


def test_task_that_knows_its_splits_is_asked_for_them() -> None:
    class Splits(Pairs):
        def problems(self, split: str = "", *, seed: int = 0) -> Sequence[Problem]:
            return [Problem(split, split, str(seed), "all")]

    assert OwnTask(Splits, REFERENCE).problems("heldout", seed=3) == [
        Problem("heldout", "heldout", "3", "all")
    ]


@pytest.mark.parametrize("row", ["text", ("a", "b", "c"), {"answer": "2"}, {"prompt": 1}, 7, None])
def test_row_that_is_no_problem_is_named_with_its_number(row: object) -> None:
    class Rows(Pairs):
        def problems(self) -> Sequence[Any]:
            return [("1+1=", "2"), row]

    with pytest.raises(ConfigError, match=r"my_task\.py:Task: problem 2 is"):
        OwnTask(Rows, REFERENCE).problems("train", seed=0)


def test_conversation_replies_by_text_and_ends_by_a_number() -> None:
    task = OwnTask(Twenty, REFERENCE)
    episode = task.begin(PROBLEM, seed=0)
    assert (task.is_conversation, episode.opening) == (True, "1+1=")
    assert (episode.reply("?").observation, episode.reply("?").done) == ("again", False)
    assert episode.reply("2").score == Score(1.0, {}, "")
    assert task.call(PROBLEM, "2").reward == 1.0, "a single completion is an episode of one turn"


def test_solution_is_played_for_a_demonstration() -> None:
    class Solved(Twenty):
        def problems(self) -> Sequence[Any]:
            return PAIRS

        def solution(self, problem: Problem) -> list[str]:
            return ["?", problem.answer]

    (shown,) = OwnTask(Solved, REFERENCE).demonstrations_of([PROBLEM], seed=0, count=1)
    assert shown == Demonstration("1+1=", "?", (("again", "2"),))
    assert len(OwnTask(Solved, REFERENCE).demonstrations(seed=0, count=100)) == 100


@pytest.mark.parametrize("turns", [["?"], ["2", "2"], [], 3, [1]])
def test_solution_that_does_not_end_its_episode_is_refused(turns: Any) -> None:
    class Unsolved(Twenty):
        def solution(self, problem: Problem) -> Any:
            return turns

    with pytest.raises(ConfigError, match=r"does not end its episode|returned"):
        OwnTask(Unsolved, REFERENCE).demonstrations_of([PROBLEM], seed=0, count=1)


def test_reply_that_is_neither_text_nor_reward_is_refused_by_its_type() -> None:
    class Silent(Twenty):
        def reply(self, text: str) -> Any:
            return None

    with pytest.raises(NoScoreError, match="it returned None"):
        OwnTask(Silent, REFERENCE).begin(PROBLEM, seed=0).reply("?")


def test_begin_that_returns_no_episode_is_refused() -> None:
    class Lost(Twenty):
        def begin(self, problem: Problem, seed: int) -> Any:
            return "opening"

    with pytest.raises(ConfigError, match=r"begin\(\) returned str, which is no episode"):
        OwnTask(Lost, REFERENCE).begin(PROBLEM, seed=0)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (of_one, r"cannot be called as \(prompt, completion, answer\)"),
        (of_two, r"cannot be called as \(prompt, completion, answer\)"),
        (7, "is no function. it is int"),
        (object, "is no function. it is object"),
    ],
)
def test_what_cannot_score_is_refused(found: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        OwnTask(found, REFERENCE)
