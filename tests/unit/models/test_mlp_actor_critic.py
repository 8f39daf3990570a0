import subprocess
import sys
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array
from tidegate.models.mlp_actor_critic import (
    MlpSpec,
    check_params,
    forward,
    init_params,
    parameter_shapes,
    policy_logits,
    sample_actions,
    state_values,
    trainable,
)
from tidegate.models.registry import MLP_SPECS, mlp_spec

SPEC = MlpSpec(observation_size=4, num_actions=3, hidden=(8, 6), input_scale=(1.0, 2.0, 5.0, 1.0))


def fresh(seed: int = 0, spec: MlpSpec = SPEC) -> dict[str, Array]:
    """Parameters with biases that are not zero, as after some training."""
    rng = np.random.default_rng(seed)
    params = init_params(spec, rng)
    for name in trainable(params):
        params[name] = params[name] + rng.normal(0.0, 0.1, params[name].shape).astype(np.float32)
    return params


def observations(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((*shape, 4)).astype(np.float32)


@given(st.integers(0, 2**31), st.sampled_from([(), (1,), (16,), (5, 3)]))
def test_numpy_and_torch_agree(seed: int, shape: tuple[int, ...]) -> None:
    params = fresh(seed)
    seen = observations(seed, *shape)
    logits, values = forward(params, seen, np)
    tensors = {name: torch.as_tensor(array) for name, array in params.items()}
    logits_t, values_t = forward(tensors, torch.as_tensor(seen), torch)
    assert logits.shape == (*shape, 3)
    assert values.shape == shape
    np.testing.assert_allclose(logits, logits_t.numpy(), atol=1e-5)
    np.testing.assert_allclose(values, values_t.numpy(), atol=1e-5)


def test_forward_equals_loops_over_units() -> None:
    # In float64: in float32 a sum that is nearly zero keeps no relative precision.
    params: dict[str, Array] = {name: array.astype(np.float64) for name, array in fresh().items()}
    seen: Array = observations(1, 1)[0].astype(np.float64)
    for network, result in (
        ("policy", policy_logits(params, seen, np)),
        ("value", state_values(params, seen, np)),
    ):
        activations = [float(value * factor) for value, factor in zip(seen, SPEC.input_scale, strict=True)]
        for layer in range(3):
            weight, bias = params[f"{network}.{layer}.weight"], params[f"{network}.{layer}.bias"]
            sums = [
                float(bias[unit]) + sum(value * float(weight[i, unit]) for i, value in enumerate(activations))
                for unit in range(weight.shape[1])
            ]
            activations = sums if layer == 2 else [float(np.tanh(total)) for total in sums]
        np.testing.assert_allclose(np.atleast_1d(result), activations, rtol=1e-12)


def test_everything_stays_float32() -> None:
    logits, values = forward(fresh(), observations(0, 4), np)
    _, logprobs = sample_actions(logits, np.random.default_rng(0))
    assert logits.dtype == values.dtype == logprobs.dtype == np.float32


def test_fresh_weights_are_orthogonal_and_the_first_policy_nearly_uniform() -> None:
    params = init_params(MlpSpec(observation_size=4, num_actions=3), np.random.default_rng(0))
    weight = params["policy.1.weight"]
    np.testing.assert_allclose(weight.T @ weight, 2.0 * np.eye(64), atol=1e-4)
    first = params["value.0.weight"]
    np.testing.assert_allclose(first @ first.T, 2.0 * np.eye(4), atol=1e-4)
    logits = policy_logits(params, observations(0, 100), np)
    assert float(np.ptp(logits)) < 0.2


def test_the_same_seed_gives_the_same_parameters() -> None:
    first, second = (init_params(SPEC, np.random.default_rng(3)) for _ in range(2))
    assert all((first[name] == second[name]).all() for name in first)
    assert {name: array.shape for name, array in first.items()} == parameter_shapes(SPEC)


def test_the_input_scale_is_published_but_not_trained() -> None:
    params = init_params(SPEC, np.random.default_rng(0))
    assert params["input_scale"].tolist() == [1.0, 2.0, 5.0, 1.0]
    assert set(params) - set(trainable(params)) == {"input_scale"}
    plain = init_params(MlpSpec(observation_size=2, num_actions=2), np.random.default_rng(0))
    assert plain["input_scale"].tolist() == [1.0, 1.0]


def test_actions_are_sampled_with_the_policys_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    actions, logprobs = sample_actions(np.tile(logits, (100_000, 1)), np.random.default_rng(0))
    shares = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.01)  # 6 standard deviations
    np.testing.assert_allclose(logprobs, logits[actions], atol=1e-6)


LOGITS = st.lists(
    st.lists(st.floats(-200.0, 200.0, width=32), min_size=3, max_size=3), min_size=1, max_size=20
)


@given(LOGITS, st.integers(0, 2**31))
def test_drawn_actions_exist_and_have_a_probability(logits: list[list[float]], seed: int) -> None:
    actions, logprobs = sample_actions(np.array(logits, dtype=np.float32), np.random.default_rng(seed))
    assert actions.dtype == np.int32
    assert ((actions >= 0) & (actions < 3)).all()
    assert np.isfinite(logprobs).all()
    assert (logprobs <= 0.0).all()
    expected = torch.log_softmax(torch.tensor(logits), dim=-1).numpy()
    np.testing.assert_allclose(logprobs, expected[np.arange(len(actions)), actions], atol=1e-3)


def test_an_action_of_probability_zero_is_never_drawn() -> None:
    logits = np.tile(np.array([-1e9, 0.0, -1e9], dtype=np.float32), (10_000, 1))
    actions, _ = sample_actions(logits, np.random.default_rng(0))
    assert set(actions.tolist()) == {1}


def test_parameters_that_fit_pass() -> None:
    check_params(SPEC, fresh())


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
    params = fresh()
    if tensor is None:
        del params[name]
    else:
        params[name] = tensor
    with pytest.raises(RecordError, match=match):
        check_params(SPEC, params)


@pytest.mark.parametrize(
    "fields",
    [{"observation_size": 0}, {"num_actions": 0}, {"hidden": (8, 0)}, {"input_scale": (1.0,)}],
)
def test_a_network_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        msgspec.structs.replace(SPEC, **fields)


def test_the_network_of_an_environment_has_the_layers_that_were_asked_for() -> None:
    spec = mlp_spec("CartPole-v1", hidden=(32,))
    assert (spec.observation_size, spec.num_actions, spec.hidden) == (4, 2, (32,))
    for known in MLP_SPECS.values():
        check_params(known, init_params(known, np.random.default_rng(0)))


def test_an_unknown_environment_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1"):
        mlp_spec("CartPole-v9", hidden=(64,))


def test_an_actor_acts_without_loading_torch() -> None:
    program = (
        "import sys, numpy as np\n"
        "from tidegate.models.registry import mlp_spec\n"
        "from tidegate.models.mlp_actor_critic import init_params, policy_logits, sample_actions\n"
        "rng = np.random.default_rng(0)\n"
        "params = init_params(mlp_spec('CartPole-v1', hidden=(8,)), rng)\n"
        "sample_actions(policy_logits(params, np.zeros((2, 4), np.float32), np), rng)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "torch was loaded"
