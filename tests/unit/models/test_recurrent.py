"""Policies with memory: the actor's steps beside the learner's fused unrolling, by hand, and what they refuse."""

import subprocess
import sys
from typing import Literal

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DictSpace, DiscreteSpace, EnvironmentDescription, Space
from tidegate.models.memory_cells import cell_step, init_cell
from tidegate.models.policies import build_policy
from tidegate.models.recurrent import RecurrentPolicy
from tidegate.runtime.config import PolicyConfig

Cell = Literal["gru", "lstm"]
each = pytest.mark.parametrize("cell", ["gru", "lstm"])
PUSH = BoxSpace((2,), "float32", (-2.0,), (2.0,))


def network(cell: Cell, *, actions: Space | None = None) -> RecurrentPolicy:
    description = EnvironmentDescription(
        "Made-v0", BoxSpace((3,), "float32", (-1.0,), (1.0,)), actions or DiscreteSpace(2)
    )
    settings = PolicyConfig(kind="mlp", hidden=(6,), memory=cell, memory_units=5, normalise_observations=True)
    policy = build_policy(description, settings)
    assert isinstance(policy, RecurrentPolicy)
    return policy


def fresh(policy: RecurrentPolicy, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    params = policy.init_params(rng)
    for name in policy.trainable(params):
        params[name] = params[name] + rng.normal(0.0, 0.3, params[name].shape).astype(np.float32)
    return params


def normal(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@each
@given(seed=st.integers(0, 2**31))
def test_steps_of_an_actor_equal_the_learners_unrolling(cell: Cell, seed: int) -> None:
    policy = network(cell, actions=PUSH)
    params = fresh(policy, seed)
    step = policy.stepper(params)
    lengths = [4, 3, 1]
    seen = [normal(seed + index, length, 3) for index, length in enumerate(lengths)]
    memory_QM = normal(seed, 3, policy.memory_size) * np.float32(0.5)
    walked = [np.zeros((0, policy.actions.num_outputs), np.float32)] * 3
    for q, length in enumerate(lengths):
        state = memory_QM[q : q + 1]
        for t in range(length):
            outputs, state = step({"observations": seen[q][t : t + 1]}, state)
            assert outputs.dtype == state.dtype == np.float32
            walked[q] = np.concatenate([walked[q], outputs])
    rows = [(q, t) for t in range(4) for q in range(3) if t < lengths[q]]
    tensors = {name: torch.as_tensor(array) for name, array in params.items()}
    observations = torch.as_tensor(np.stack([seen[q][t] for q, t in rows]))
    found, values = policy.unrolled(
        tensors, {"observations": observations}, torch.as_tensor(memory_QM), torch.tensor([3, 2, 2, 1]), torch
    )
    assert values.shape == (8,)
    np.testing.assert_allclose(found.numpy(), np.stack([walked[q][t] for q, t in rows]), atol=1e-5)


def test_a_gru_by_hand() -> None:
    """One unit: r = σ(0.5), z = σ(-1), n = tanh(2 + r · (3 · 0.4 + 1)), h' = (1 - z) n + z · 0.4."""
    params: dict[str, Array] = {
        "memory.input.weight": np.array([[0.5, -1.0, 2.0]]),
        "memory.input.bias": np.zeros(3),
        "memory.recurrent.weight": np.array([[0.0, 0.0, 3.0]]),
        "memory.recurrent.bias": np.array([0.0, 0.0, 1.0]),
    }
    output, state = cell_step("gru", params, np.ones((1, 1)), np.array([[0.4]]))
    reset, update = 1 / (1 + np.exp(-0.5)), 1 / (1 + np.exp(1.0))
    candidate = np.tanh(2.0 + reset * (3.0 * 0.4 + 1.0))
    assert output.tolist() == state.tolist()
    assert output[0, 0] == pytest.approx((1 - update) * candidate + update * 0.4, abs=1e-9)


def test_an_lstm_by_hand() -> None:
    """One unit with state (0.2, 0.7): c' = σ(f) · 0.7 + σ(i) tanh(g), h' = σ(o) tanh(c')."""
    params: dict[str, Array] = {
        "memory.input.weight": np.array([[0.5, -1.0, 2.0, 0.1]]),
        "memory.input.bias": np.zeros(4),
        "memory.recurrent.weight": np.array([[1.0, 0.0, 0.0, -2.0]]),
        "memory.recurrent.bias": np.zeros(4),
    }
    output, state = cell_step("lstm", params, np.ones((1, 1)), np.array([[0.2, 0.7]]))

    def sigmoid(value: float) -> float:
        return float(1 / (1 + np.exp(-value)))

    inner = sigmoid(-1.0) * 0.7 + sigmoid(0.7) * np.tanh(2.0)
    assert output[0, 0] == pytest.approx(sigmoid(-0.3) * np.tanh(inner), abs=1e-9)
    assert state[0].tolist() == pytest.approx([output[0, 0], inner])


@each
def test_fresh_parameters_fit_and_gates_are_orthogonal(cell: Cell) -> None:
    policy = network(cell)
    params = policy.init_params(np.random.default_rng(0))
    policy.check_params(params)
    assert {name: array.shape for name, array in params.items()} == policy.parameter_shapes()
    gate = params["memory.recurrent.weight"][:, :5]
    np.testing.assert_allclose(gate.T @ gate, np.eye(5), atol=1e-5)
    assert policy.memory_size == (5 if cell == "gru" else 10)
    assert set(params) - set(policy.trainable(params)) == {
        "normaliser.mean", "normaliser.variance", "normaliser.count",
    }  # fmt: skip


def test_a_fresh_lstm_keeps_its_state() -> None:
    params = init_cell("lstm", num_features=2, num_units=3, rng=np.random.default_rng(0))
    assert params["memory.input.bias"].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_single_observations_are_refused() -> None:
    policy = network("gru")
    params, seen = fresh(policy, 0), {"observations": normal(0, 1, 3)}
    for call in (policy.action_outputs, policy.values, policy.outputs_and_values):
        with pytest.raises(ConfigError, match="memory"):
            call(params, seen, np)
    with pytest.raises(ConfigError, match="memory"):
        policy.runner(params)


def of_images(cell: Cell) -> RecurrentPolicy:
    """Images of 36 x 36 pixels and two numbers beside them, which are normalised."""
    seen = DictSpace(
        {
            "camera": BoxSpace((2, 36, 36), "uint8", (0.0,), (255.0,)),
            "speed": BoxSpace((2,), "float32", (-1.0,), (1.0,)),
        }
    )
    settings = PolicyConfig(kind="cnn", features=16, memory=cell, memory_units=5, normalise_observations=True)
    policy = build_policy(EnvironmentDescription("Made-v0", seen, DiscreteSpace(3)), settings)
    assert isinstance(policy, RecurrentPolicy)
    return policy


@each
def test_steps_over_images_equal_the_learners_unrolling(cell: Cell) -> None:
    policy = of_images(cell)
    params = fresh(policy, 0)
    assert {name: array.shape for name, array in params.items()} == policy.parameter_shapes()
    camera = np.random.default_rng(1).integers(0, 256, (6, 2, 36, 36), np.uint8)
    seen = {"observations.camera": camera, "observations.speed": normal(2, 6, 2)}
    memory_QM = normal(3, 2, policy.memory_size) * np.float32(0.5)
    step, state = policy.stepper(params), memory_QM
    walked: list[Array] = []
    for t in range(3):
        outputs, state = step({name: array[2 * t : 2 * t + 2] for name, array in seen.items()}, state)
        assert outputs.dtype == state.dtype == np.float32
        walked.append(outputs)
    found, values = policy.unrolled(
        {name: torch.as_tensor(array) for name, array in params.items()},
        {name: torch.as_tensor(array) for name, array in seen.items()},
        torch.as_tensor(memory_QM),
        torch.tensor([2, 2, 2]),
        torch,
    )
    assert values.shape == (6,)
    np.testing.assert_allclose(found.numpy(), np.concatenate(walked), atol=1e-4)


def test_the_state_stays_in_float32_where_convolutions_do_not() -> None:
    policy = of_images("gru")
    params = {name: torch.as_tensor(array) for name, array in fresh(policy, 0).items()}
    seen = {
        "observations.camera": torch.zeros((2, 2, 36, 36), dtype=torch.uint8),
        "observations.speed": torch.zeros((2, 2)),
    }
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, values = policy.unrolled(params, seen, torch.zeros((2, 5)), torch.tensor([2]), torch)
    assert outputs.dtype == values.dtype == torch.float32


def test_fresh_statistics_of_numbers_beside_images_are_not_trained() -> None:
    policy = of_images("lstm")
    params = policy.init_params(np.random.default_rng(0))
    policy.check_params(params)
    assert set(params) - set(policy.trainable(params)) == {
        "normaliser.mean", "normaliser.variance", "normaliser.count",
    }  # fmt: skip
    updated = policy.updated_statistics(params, {"observations.speed": normal(0, 8, 2)})
    assert updated["normaliser.count"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_an_actor_steps_without_loading_torch(kind: str) -> None:
    space = "(3,), 'float32', (-1.0,), (1.0,)" if kind == "mlp" else "(2, 36, 36), 'uint8', (0.0,), (255.0,)"
    source = (
        "import sys, numpy as np\n"
        "from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription\n"
        "from tidegate.models.policies import build_policy\n"
        "from tidegate.runtime.config import PolicyConfig\n"
        f"space = BoxSpace({space})\n"
        "described = EnvironmentDescription('M', space, DiscreteSpace(2))\n"
        f"policy = build_policy(described, PolicyConfig(kind='{kind}', memory='lstm'))\n"
        "params = policy.init_params(np.random.default_rng(0))\n"
        "state = np.zeros((2, policy.memory_size), np.float32)\n"
        "policy.stepper(params)({'observations': np.zeros((2, *space.shape), space.dtype)}, state)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "torch was loaded"
