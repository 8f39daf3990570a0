"""One episode in text form: Gymnasium's environments, text tasks, and invalid actions."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import NotFoundError, RecordError
from tidegate.environment.session_envs import (
    GymnasiumEnv,
    SessionVerdict,
    make_session_env,
    parse_action,
    to_action,
    to_json,
)
from tidegate.environment.state import AnsweredProblem
from tidegate.environment.tasks.port import Problem, Score
from tidegate.environment.tasks.registry import TASKS


def test_gymnasium_episode_through_json_is_the_episode_itself() -> None:
    behind_json = make_session_env("CartPole-v1", allowed_modules=())
    direct = gymnasium.make("CartPole-v1")
    observation, _ = direct.reset(seed=7)
    assert json.loads(behind_json.reset(seed=7, problem=None)) == observation.tolist()
    for action in (0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1):
        outcome = behind_json.step(json.dumps(action))
        observation, reward, terminated, truncated, _ = direct.step(action)
        assert json.loads(outcome.observation) == observation.tolist()
        assert (outcome.reward, outcome.terminated, outcome.truncated) == (reward, terminated, truncated)
    assert outcome.terminated
    behind_json.close()


def test_text_task_is_an_episode_of_one_turn_in_plain_text() -> None:
    problem = Problem("47+38", "47+38=", "085", "carries-1")
    env = make_session_env("arithmetic", allowed_modules=())
    assert env.deterministic
    assert env.reset(seed=3, problem=problem) == "47+38="
    right = env.step("085")
    assert (right.reward, right.terminated, right.truncated) == (1.0, True, False)
    assert right.verdict == SessionVerdict(
        AnsweredProblem(problem, "085"), Score(1.0, {"exact": 1.0, "digits": 1.0}, "solved")
    )
    env.reset(seed=3, problem=problem)
    assert env.step("nonsense").reward == 0.0


def test_text_task_without_a_problem_draws_a_training_problem_by_the_seed() -> None:
    env = make_session_env("arithmetic", allowed_modules=())
    openings = [env.reset(seed=seed, problem=None) for seed in (3, 3, 4)]
    assert openings[0] == openings[1] != openings[2]
    assert openings[0] in {problem.prompt for problem in TASKS["arithmetic"].problems("train", seed=0)}


@pytest.mark.parametrize("env_id", ["Nope-v1", "nope", ""])
def test_unknown_environment_is_named(env_id: str) -> None:
    with pytest.raises(NotFoundError, match=f"'{env_id}' cannot be made"):
        make_session_env(env_id, allowed_modules=())


def test_call_may_not_import_a_module_that_the_run_file_does_not_list() -> None:
    name = "gymnasium.envs.classic_control:CartPole-v1"
    with pytest.raises(NotFoundError, match="would import a module"):
        make_session_env(name, allowed_modules=())
    assert isinstance(make_session_env(name, allowed_modules=(name,)), GymnasiumEnv)


@pytest.mark.parametrize("action", ["2", "-1", "0.5", "true", '"1"', "[1]", "null", "{}", "[[]]", "1e400"])
def test_action_outside_of_the_space_is_refused(action: str) -> None:
    env = make_session_env("CartPole-v1", allowed_modules=())
    env.reset(seed=0, problem=None)
    with pytest.raises(RecordError):
        env.step(action)
    assert env.step("1").reward == 1.0


@given(st.text(max_size=40))
def test_any_text_is_an_action_or_a_record_error(text: str) -> None:
    parts: Any = [spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)), spaces.Dict(a=spaces.MultiBinary(2))]
    space: Any = spaces.Tuple(parts)
    try:
        member = to_action(space, parse_action(text))
    except RecordError:
        return
    assert space.contains(member)


def test_text_nested_deeper_than_json_is_read_is_a_record_error() -> None:
    with pytest.raises(RecordError, match="is no JSON"):
        parse_action("[" * 100_000)


@given(st.integers(0, 2**31 - 1))
def test_every_member_of_a_nested_space_survives_json(seed: int) -> None:
    space = spaces.Dict(
        pick=spaces.Discrete(5, start=2),
        push=spaces.Box(-1.0, 1.0, (2, 2), dtype=np.float32),
        keys=spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)]),
    )
    space.seed(seed)
    member = space.sample()
    back = to_action(space, parse_action(to_json(member)))
    assert to_json(back) == to_json(member)


def test_numbers_that_json_lacks_are_observed_as_null() -> None:
    assert json.loads(to_json({"x": np.array([np.inf, 1.0]), "y": (np.float32("nan"), 2)})) == {
        "x": [None, 1.0],
        "y": [None, 2],
    }
