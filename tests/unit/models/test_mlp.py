"""The dense policy: numpy beside torch, beside loops over units, its parameters and what it refuses."""

import math
import subprocess
import sys
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.support.environments import CARTPOLE
from tests.unit.models import test_inputs
from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription, Space
from tidegate.models.policies import POLICIES, build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.config import PolicyConfig

SCALE = (1.0, 2.0, 5.0, 1.0)
FLAT = BoxSpace((4,), "float32", (-1.0,), (1.0,))
PUSH = BoxSpace((2,), "float32", (-2.0,), (2.0,))


def network(observations: Space = FLAT, actions: Space | None = None, **settings: Any) -> SegmentPolicy:
    chosen: dict[str, Any] = {"hidden": (8, 6), **settings}
    description = EnvironmentDescription("Made-v0", observations, actions or DiscreteSpace(3))
    return build_policy(description, PolicyConfig(kind="mlp", **chosen))


def fresh(policy: SegmentPolicy, seed: int = 0) -> dict[str, Array]:
    """Parameters with biases that are not zero, as after some training."""
    rng = np.random.default_rng(seed)
    params = policy.init_params(rng)
    for name in policy.trainable(params):
        params[name] = params[name] + rng.normal(0.0, 0.1, params[name].shape).astype(np.float32)
    return params


def seen(seed: int, *shape: int) -> dict[str, Array]:
    return {"observations": np.random.default_rng(seed).standard_normal((*shape, 4)).astype(np.float32)}


def tensors(arrays: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(array) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("actions", "settings"),
    [
        (DiscreteSpace(3), {"input_scale": SCALE}),
        (PUSH, {"activation": "relu"}),
        (PUSH, {"squash_actions": True, "normalise_observations": True}),
    ],
)
@given(seed=st.integers(0, 2**31), shape=st.sampled_from([(), (1,), (16,), (5, 3)]))
def test_numpy_and_torch_agree(
    actions: Space, settings: dict[str, Any], seed: int, shape: tuple[int, ...]
) -> None:
    policy = network(actions=actions, **settings)
    params, observations = fresh(policy, seed), seen(seed, *shape)
    outputs, values = policy.outputs_and_values(params, observations, np)
    outputs_t, values_t = policy.outputs_and_values(tensors(params), tensors(observations), torch)
    assert outputs.shape == (*shape, policy.actions.num_outputs)
    assert values.shape == shape
    assert outputs.dtype == values.dtype == np.float32
    np.testing.assert_allclose(outputs, outputs_t.numpy(), atol=1e-5)
    np.testing.assert_allclose(values, values_t.numpy(), atol=1e-5)
    np.testing.assert_array_equal(outputs, policy.action_outputs(params, observations, np))
    np.testing.assert_array_equal(values, policy.values(params, observations, np))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_outputs_equal_loops_over_units(activation: str) -> None:
    policy = network(input_scale=SCALE, activation=activation)
    # In float64: in float32 a sum that is nearly zero keeps no relative precision.
    params: dict[str, Array] = {name: array.astype(np.float64) for name, array in fresh(policy).items()}
    observation: Array = seen(1, 1)["observations"][0].astype(np.float64)
    found = policy.outputs_and_values(params, {"observations": observation}, np)
    for name, result in zip(("policy", "value"), found, strict=True):
        activations = [float(value * factor) for value, factor in zip(observation, SCALE, strict=True)]
        for layer in range(3):
            weight, bias = params[f"{name}.{layer}.weight"], params[f"{name}.{layer}.bias"]
            sums = [
                float(bias[unit]) + sum(value * float(weight[i, unit]) for i, value in enumerate(activations))
                for unit in range(weight.shape[1])
            ]
            if layer < 2:
                sums = [math.tanh(total) if activation == "tanh" else max(total, 0.0) for total in sums]
            activations = sums
        np.testing.assert_allclose(np.atleast_1d(result), activations, rtol=1e-12)


def test_fresh_weights_are_orthogonal_and_the_first_policy_nearly_uniform() -> None:
    policy = network(hidden=(64, 64))
    params = policy.init_params(np.random.default_rng(0))
    weight = params["policy.1.weight"]
    np.testing.assert_allclose(weight.T @ weight, 2.0 * np.eye(64), atol=1e-4)
    first = params["policy.0.weight"]
    np.testing.assert_allclose(first @ first.T, 2.0 * np.eye(4), atol=1e-4)
    logits = policy.action_outputs(params, seen(0, 100), np)
    assert float(np.ptp(logits)) < 0.2


def test_the_same_seed_gives_the_same_parameters_of_the_declared_shapes() -> None:
    for policy in (network(), network(actions=PUSH, normalise_observations=True)):
        first, second = (policy.init_params(np.random.default_rng(3)) for _ in range(2))
        assert all((first[name] == second[name]).all() for name in first)
        assert {name: array.shape for name, array in first.items()} == policy.parameter_shapes()
        policy.check_params(first)


def test_the_input_scale_is_published_but_not_trained() -> None:
    policy = network(input_scale=SCALE)
    params = policy.init_params(np.random.default_rng(0))
    assert params["input_scale"].tolist() == list(SCALE)
    assert set(params) - set(policy.trainable(params)) == {"input_scale"}
    assert network().init_params(np.random.default_rng(0))["input_scale"].tolist() == [1.0] * 4


def test_a_gaussians_deviation_is_a_parameter_and_the_same_for_every_observation() -> None:
    policy = network(actions=PUSH)
    params = policy.init_params(np.random.default_rng(0))
    params["policy.shared_outputs"] = np.array([0.5, -1.0], np.float32)
    assert "policy.shared_outputs" in policy.trainable(params)
    outputs = policy.action_outputs(params, seen(0, 5), np)
    assert outputs[:, 2:].tolist() == [[0.5, -1.0]] * 5
    assert params["policy.2.weight"].shape == (6, 2)


def test_statistics_normalise_the_inputs_and_are_not_trained() -> None:
    policy = network(normalise_observations=True)
    params = fresh(policy)
    shifted = {"observations": seen(0, 500)["observations"] * 100.0 + 7.0}
    statistics = policy.updated_statistics(params, shifted)
    assert set(statistics) == set(params) - set(policy.trainable(params))
    plain = network(input_scale=(1.0,) * 4)
    normal = (shifted["observations"] - shifted["observations"].mean(axis=0)) / shifted["observations"].std(
        axis=0
    )
    expected = plain.values(params | {"input_scale": np.ones(4, np.float32)}, {"observations": normal}, np)
    np.testing.assert_allclose(policy.values(params | statistics, shifted, np), expected, atol=1e-4)
    assert plain.updated_statistics(params, shifted) == {}


def test_every_kind_of_observation_reaches_both_networks() -> None:
    policy = network(test_inputs.SPACE, normalise_observations=True)
    params = fresh(policy)
    assert list(policy.observations) == list(test_inputs.SEEN)
    outputs, values = policy.outputs_and_values(params, test_inputs.SEEN, np)
    assert (outputs.shape, values.shape) == ((2, 3), (2,))
    statistics = policy.updated_statistics(params, test_inputs.SEEN)
    assert statistics["normaliser.mean"].shape == (15,)
    for name, array in test_inputs.SEEN.items():
        changed = {**test_inputs.SEEN, name: array[::-1].copy()}
        assert not np.allclose(policy.values(params, changed, np), values), name


def test_parameters_that_fit_pass() -> None:
    policy = network()
    policy.check_params(fresh(policy))


@pytest.mark.parametrize(
    ("name", "tensor", "match"),
    [
        ("policy.1.bias", None, "policy.1.bias' is missing"),
        ("policy.9.bias", np.zeros(3, dtype=np.float32), "policy.9.bias' is unknown"),
        ("value.0.weight", np.zeros((4, 9), dtype=np.float32), "value.0.weight' has the shape"),
        ("value.0.bias", np.zeros(8, dtype=np.float64), "value.0.bias' is float64"),
    ],
)
def test_parameters_of_another_network_are_refused_by_name(
    name: str, tensor: Array | None, match: str
) -> None:
    policy = network()
    params = fresh(policy)
    if tensor is None:
        del params[name]
    else:
        params[name] = tensor
    with pytest.raises(RecordError, match=match):
        policy.check_params(params)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"hidden": (8, 0)}, "needs units"),
        ({"input_scale": (1.0,)}, "1 factors for 4 inputs"),
        ({"input_scale": SCALE, "normalise_observations": True}, "both set"),
        ({"squash_actions": True}, "not continuous"),
    ],
)
def test_a_network_that_cannot_be_is_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        network(**settings)


def test_a_policy_of_text_is_refused_with_the_kinds_for_segments() -> None:
    with pytest.raises(ConfigError, match="char_lm cannot run segments"):
        build_policy(CARTPOLE, PolicyConfig(kind="char_lm"))
    assert "mlp" in POLICIES


@pytest.mark.slow
def test_an_actor_acts_without_loading_torch() -> None:
    program = (
        "import sys, numpy as np\n"
        "from tests.support.environments import CARTPOLE\n"
        "from tidegate.models.policies import build_policy\n"
        "from tidegate.runtime.config import PolicyConfig\n"
        "policy = build_policy(CARTPOLE, PolicyConfig(kind='mlp'))\n"
        "rng = np.random.default_rng(0)\n"
        "seen = {'observations': np.zeros((2, 4), np.float32)}\n"
        "policy.actions.sample(policy.action_outputs(policy.init_params(rng), seen, np), rng)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "torch was loaded"
