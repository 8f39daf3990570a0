"""Q-networks with memory: the actor's steps beside the learner's unrolling, and the dueling head over both."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import q_learning as slow
from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import MemoryPolicy
from tidegate.models.recurrent_q import RecurrentQNetwork
from tidegate.runtime.config import PolicyConfig

Cell = Literal["gru", "lstm"]
each = pytest.mark.parametrize("cell", ["gru", "lstm"])
DESCRIPTION = EnvironmentDescription("Made-v0", BoxSpace((3,), "float32", (-1.0,), (1.0,)), DiscreteSpace(4))


def network(cell: Cell) -> RecurrentQNetwork:
    policy = build_policy(DESCRIPTION, PolicyConfig(kind="q_mlp", hidden=(6,), memory=cell, memory_units=5))
    assert isinstance(policy, RecurrentQNetwork)
    assert isinstance(policy, MemoryPolicy)
    return policy


def fresh(policy: RecurrentQNetwork, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    params = policy.init_params(rng)
    policy.check_params(params)
    return {
        name: array + rng.normal(0.0, 0.3, array.shape).astype(np.float32) for name, array in params.items()
    }


@each
@given(seed=st.integers(0, 2**31))
def test_steps_of_an_actor_equal_the_learners_unrolling(cell: Cell, seed: int) -> None:
    policy = network(cell)
    params, rng = fresh(policy, seed), np.random.default_rng(seed)
    num_steps, num_sequences = 4, 3
    seen_LQ3 = rng.standard_normal((num_steps, num_sequences, 3)).astype(np.float32)
    memory_QM = rng.normal(0.0, 0.5, (num_sequences, policy.memory_size)).astype(np.float32)
    walked, state = list[Array](), memory_QM
    for seen in seen_LQ3:
        outputs, state = policy.stepper(params)({"observations": seen}, state)
        walked.append(outputs)
    arguments = (
        {name: torch.tensor(array) for name, array in params.items()},
        {"observations": torch.tensor(seen_LQ3.reshape(-1, 3))},
        torch.tensor(memory_QM),
        torch.full((num_steps,), num_sequences),
        torch,
    )
    q_RA, best_R = policy.unrolled(*arguments)
    np.testing.assert_allclose(q_RA, np.concatenate(walked), atol=1e-5)
    assert torch.equal(best_R, q_RA.amax(-1))
    np.testing.assert_allclose(policy.memory_after(*arguments), state, atol=1e-5)


@each
def test_steps_over_images_equal_the_learners_unrolling(cell: Cell) -> None:
    seen = BoxSpace((2, 36, 36), "uint8", (0.0,), (255.0,))
    policy = build_policy(
        EnvironmentDescription("Made-v0", seen, DiscreteSpace(4)),
        PolicyConfig(kind="q_cnn", features=8, memory=cell, memory_units=5),
    )
    assert isinstance(policy, RecurrentQNetwork)
    params, rng = fresh(policy, 0), np.random.default_rng(1)
    images_LQ = rng.integers(0, 256, (3, 2, 2, 36, 36)).astype(np.uint8)
    memory_QM = rng.normal(0.0, 0.5, (2, policy.memory_size)).astype(np.float32)
    step, walked, state = policy.stepper(params), list[Array](), memory_QM
    for images in images_LQ:
        outputs, state = step({"observations": images}, state)
        walked.append(outputs)
    q_RA, _ = policy.unrolled(
        {name: torch.tensor(array) for name, array in params.items()},
        {"observations": torch.tensor(images_LQ.reshape(-1, 2, 36, 36))},
        torch.tensor(memory_QM),
        torch.tensor([2, 2, 2]),
        torch,
    )
    np.testing.assert_allclose(q_RA, np.concatenate(walked), rtol=1e-3, atol=1e-3)


def test_values_are_advantages_without_their_mean_and_the_state_value() -> None:
    policy = network("gru")
    params = fresh(policy, 0)
    zeros = {name: np.zeros_like(array) for name, array in params.items()}
    zeros["policy.bias"] = np.array([1.0, 2.0, 3.0, 6.0], np.float32)
    zeros["value.bias"] = np.array([10.0], np.float32)
    outputs, _ = policy.stepper(zeros)(
        {"observations": np.ones((1, 3), np.float32)}, np.zeros((1, 5), np.float32)
    )
    assert outputs[0].tolist() == pytest.approx(slow.dueling([1.0, 2.0, 3.0, 6.0], 10.0))


def test_single_observations_are_refused() -> None:
    policy = network("gru")
    params, seen = fresh(policy, 0), {"observations": np.zeros((1, 3), np.float32)}
    for call in (policy.action_outputs, policy.values, policy.outputs_and_values):
        with pytest.raises(ConfigError, match="memory"):
            call(params, seen, np)
    with pytest.raises(ConfigError, match="memory"):
        policy.runner(params)
