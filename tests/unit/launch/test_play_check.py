"""One episode before a run: what is seen of text and of segments, and what fails with file and line."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.launch.test_run_file import TEXT
from tidegate.cli.app import run
from tidegate.cli.check import played_lines
from tidegate.core.errors import TidegateError
from tidegate.environment.one_episode import PlayedText
from tidegate.launch.play_check import play_run
from tidegate.launch.play_child import PlayedSegments, shown
from tidegate.launch.run_parsing import parse_plan

TASK = """\
class Sums:
    def problems(self):
        return [(str(n) + "+1=", str(n + 1)) for n in range(50)]

    def score(self, problem, completion):
        {body}

class Counting(Sums):
    def begin(self, problem, seed):
        return Episode(problem)

class Episode:
    def __init__(self, problem):
        self.opening, self.answer = problem.prompt, problem.answer

    def reply(self, text):
        if text == "?":
            return "again"
        {reply}
        return float(text == self.answer)
"""
ENVIRONMENT = """\
import gymnasium
import numpy

class Game(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 4
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        self.left -= 1
        STEP
        return numpy.zeros(2, numpy.float32), 0.5, self.left == 0, False, {}

gymnasium.register("Game-v0", entry_point=Game)
"""


def play(folder: Path, **workload: Any) -> list[PlayedText]:
    raw = {**TEXT, "workload": {**TEXT["workload"], **workload}, "files_dir": str(folder)}
    played = asyncio.run(play_run(parse_plan(raw, source="test")))
    assert isinstance(played, list)
    return played


def play_game(folder: Path, *, step: str = "pass") -> PlayedSegments:
    (folder / "game_to_play.py").write_text(ENVIRONMENT.replace("STEP", step))
    raw = {
        "run": "game",
        "workload": {"kind": "segments", "env": "game_to_play:Game-v0"},
        "policy": {"kind": "mlp"},
        "batch_size": 2,
        "max_running": 6,
        "files_dir": str(folder),
    }
    played = asyncio.run(play_run(parse_plan(raw, source="test")))
    assert isinstance(played, PlayedSegments)
    return played


def write_task(
    folder: Path, *, body: str = "return completion == problem.answer", reply: str = "pass"
) -> None:
    (folder / "sums.py").write_text(TASK.format(body=body, reply=reply))


def test_task_judges_its_own_answer_and_a_text_that_means_nothing(tmp_path: Path) -> None:
    write_task(tmp_path)
    right, wrong = played = play(tmp_path, env="sums.py:Sums")
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert right.prompt == wrong.prompt
    assert right.turns[0][0].isdigit()
    said = played_lines(played)
    assert repr(right.prompt) in said
    assert "reward  1 (task 1), scored" in said


def test_conversation_is_played_to_its_end_or_its_last_turn(tmp_path: Path) -> None:
    write_task(tmp_path)
    right, wrong = play(tmp_path, env="sums.py:Counting", turns_max=3)
    assert (right.reward, right.end) == (1.0, "ended after 1 turns")
    assert wrong.turns == [("?", "again")] * 3
    assert wrong.end == "cut after 3 turns (workload.turns_max)"


def test_conversation_of_this_package_is_played_by_its_demonstration(tmp_path: Path) -> None:
    right, wrong = play(tmp_path, env="calculator", turns_max=4)
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert len(right.turns) > 1


@pytest.mark.parametrize(
    ("task", "turns_max", "said"),
    [
        (
            {"body": "raise ValueError('no sums')"},
            1,
            r"The verifier task failed.*sums\.py:6 in score: no sums",
        ),
        ({"body": "return None"}, 1, "The verifier task failed.*it returned None"),
        ({"reply": "return 1 / 0"}, 3, r"sums\.py:19 in reply: division by zero"),
    ],
    ids=["raises", "no number", "raises in a turn"],
)
def test_mistake_of_a_task_is_told_with_its_line(
    tmp_path: Path, task: dict[str, str], turns_max: int, said: str
) -> None:
    write_task(tmp_path, **task)
    name = "Counting" if turns_max > 1 else "Sums"
    with pytest.raises(TidegateError, match=said):
        play(tmp_path, env=f"sums.py:{name}", turns_max=turns_max)


def test_environment_is_played_to_its_end(tmp_path: Path) -> None:
    played = play_game(tmp_path)
    assert (played.num_steps, played.episode_return, played.end) == (4, 2.0, "terminated")
    assert played.rewards == [0.5]
    assert played.observation == "[0.0, 0.0]"
    assert "return 2 in 4 steps" in played_lines(played)


def test_step_that_fails_later_than_the_check_looks_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match=r"fails in step 3. ZeroDivisionError.*game_to_play\.py:13"):
        play_game(tmp_path, step="self.left / (self.left - 1)")


def test_environment_that_ends_its_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match="ended the process that played it, with exit code 3"):
        play_game(tmp_path, step="import os; os._exit(3)")


def test_observations_are_shown_by_value_or_by_range() -> None:
    assert shown({"a": np.zeros((1, 2)), "b": np.ones((1, 3, 3), np.uint8)}) == (
        "a: [0.0, 0.0], b: uint8 of (3, 3) from 1 to 1"
    )
    assert shown((np.array([3]),)) == "0: 3"


def test_command_prints_what_was_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(tmp_path)
    (tmp_path / "run.yaml").write_text(
        "run: sums\nworkload: {kind: text, env: 'sums.py:Sums'}\npolicy: {kind: char_lm}\n"
        "batch_size: 8\nmax_running: 8\n"
    )
    assert run(["check", str(tmp_path / "run.yaml"), "--play"]) == 0
    assert "reward  0 (task 0), scored" in capsys.readouterr().out
    assert run(["check", str(tmp_path / "run.yaml"), "--play", "--json"]) == 0
    assert '"parts":{"task":1.0}' in capsys.readouterr().out.replace(" ", "")
