"""The table of algorithms, which a run file is checked against before anything starts."""

import subprocess
import sys
from typing import get_args

import pytest

from tidegate.actor.engines.registry import ENGINES
from tidegate.core.errors import ConfigError
from tidegate.learner.algorithm import ALGORITHMS, AlgorithmName, check_engine, find_algorithm
from tidegate.models.policies import POLICIES
from tidegate.runtime.loading import load


def test_every_algorithm_has_a_line_and_can_be_opened() -> None:
    assert set(ALGORITHMS) == set(get_args(AlgorithmName))
    assert ALGORITHMS.keys() == load("tidegate.learner.optim.registry:TRAINERS").keys()
    assert {entry.engine for entry in ALGORITHMS.values()} <= {"", *ENGINES}


@pytest.mark.parametrize("kind", [*POLICIES, "char_lm", "transformers"])
def test_auto_finds_one_for_every_kind_of_policy(kind: str) -> None:
    name, entry = find_algorithm("auto", policy_kind=kind)
    expected = {"q_mlp": "q_learning", "q_cnn": "q_learning", "squashed_mlp": "sac", "squashed_cnn": "sac"}
    assert name == expected.get(kind, "actor_critic" if kind in POLICIES else "language_model")
    assert kind in entry.policies


def test_algorithm_that_cannot_train_the_policy_is_refused_with_those_it_trains() -> None:
    with pytest.raises(ConfigError, match="applied_gradients trains mlp"):
        find_algorithm("applied_gradients", policy_kind="char_lm")


def test_engine_and_algorithm_that_do_not_fit_are_refused_with_the_one_that_does() -> None:
    assert check_engine("actor_critic", engine="auto") is None
    assert check_engine("applied_gradients", engine="gradient_env") is None
    wrong_engine = check_engine("applied_gradients", engine="auto")
    assert wrong_engine is not None
    assert "set actor.engine to gradient_env" in str(wrong_engine)
    wrong_algorithm = check_engine("actor_critic", engine="gradient_env")
    assert wrong_algorithm is not None
    assert "set learner.algorithm to applied_gradients" in str(wrong_algorithm)


def test_table_loads_no_torch() -> None:
    code = "import sys, tidegate.learner.algorithm; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
