"""Figures of evaluations: of the whole, and of each environment by its name."""

import pytest

from tidegate.actor.evaluation.held_out_figures import held_out_figures
from tidegate.actor.rollouts.heldout import HeldOutProblem, check_envs_of
from tidegate.core.errors import ConfigError


def test_one_environment_has_the_figures_of_its_answers() -> None:
    found = held_out_figures([("", 1.0), ("", 0.5), ("", None)], {})
    assert found == {"solved_share": 0.5, "mean_reward": 0.75, "num_problems": 2}


def test_whole_is_the_mean_by_weight_however_many_problems_each_has() -> None:
    rewards = [("a", 1.0), ("a", 1.0), ("a", 0.0), ("a", 0.0), ("b", 1.0)]
    found = held_out_figures(rewards, {"a": 3.0, "b": 1.0})
    assert found["solved_share"] == pytest.approx((3 * 0.5 + 1.0) / 4)
    assert found["num_problems"] == 5
    assert (found["solved_share.a"], found["num_problems.a"], found["weight.a"]) == (0.5, 4, 3.0)
    assert (found["solved_share.b"], found["num_problems.b"], found["weight.b"]) == (1.0, 1, 1.0)


def test_environment_without_a_verdict_is_left_out_of_the_whole() -> None:
    found = held_out_figures([("a", 0.5), ("b", None)], {"a": 1.0, "b": 9.0})
    assert found["mean_reward"] == 0.5
    assert "mean_reward.b" not in found


def test_environment_that_is_not_trained_stands_beside_the_whole() -> None:
    weights = {"a": 1.0, "b": 0.0}
    assert held_out_figures([("a", 0.0), ("b", 1.0)], weights)["mean_reward"] == 0.0
    assert held_out_figures([("a", 0.0), ("b", 1.0)], weights)["mean_reward.b"] == 1.0
    assert held_out_figures([("a", None), ("b", 1.0)], weights)["mean_reward"] == 1.0


def test_problem_of_no_environment_of_the_run_is_named() -> None:
    known = HeldOutProblem("1", "1+1=", "2", env="plus")
    check_envs_of([known], {"plus": 1.0})
    for env in ("", "minus"):
        with pytest.raises(ConfigError, match=f"Held-out problem '7' is of the environment '{env}'"):
            check_envs_of([known, HeldOutProblem("7", "x", "y", env=env)], {"plus": 1.0})
