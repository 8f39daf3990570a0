"""Layers of a user's own: numpy beside torch, as a policy with and without memory, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.environments import CARTPOLE
from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.models.epsilon_greedy import EpsilonGreedy
from tidegate.models.own_layers import PREFIX
from tidegate.models.own_layers_trial import try_own_layers
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import MemoryPolicy, SegmentPolicy
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.own_code.references import OwnReference
from tidegate.runtime.own_policy import OwnPolicyCode, load_policy_code, own_policy_of

WRITTEN = "my_policy.py:Residual"
REFERENCE = OwnReference(WRITTEN, __file__, "Residual")
PUSH = EnvironmentDescription(
    "Push-v0", BoxSpace((3,), "float32", (-1.0,), (1.0,)), BoxSpace((2,), "float32", (-2.0,), (2.0,))
)


class Residual:
    def shapes(self, num_inputs: int) -> dict[str, tuple[int, ...]]:
        return {"in": (num_inputs, 16), "bias": (16,), "middle": (16, 16)}

    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        hidden = xp.tanh(inputs @ params["in"] + params["bias"])
        return hidden + xp.tanh(hidden @ params["middle"])


class Scaled(Residual):
    """With parameters that do not begin at 0."""

    def init_params(self, num_inputs: int, rng: np.random.Generator) -> dict[str, Array]:
        return {name: np.full(shape, 0.5, np.float32) for name, shape in self.shapes(num_inputs).items()}


def made(code: Any, description: EnvironmentDescription = CARTPOLE, **settings: Any) -> SegmentPolicy:
    return build_policy(
        description, PolicyConfig(kind=WRITTEN, **settings), code=OwnPolicyCode(code, REFERENCE)
    )


@pytest.mark.parametrize("shape", [(), (1,), (16,), (5, 3), (0,)])
@pytest.mark.parametrize(
    ("description", "settings"), [(CARTPOLE, {}), (PUSH, {"normalise_observations": True})]
)
def test_numpy_and_torch_agree_whatever_the_leading_dimensions(
    description: EnvironmentDescription, settings: dict[str, Any], shape: tuple[int, ...]
) -> None:
    policy = made(Residual(), description, **settings)
    params = policy.init_params(np.random.default_rng(1))
    assert {name: value.shape for name, value in params.items()} == policy.parameter_shapes()
    policy.check_params(params)
    name, leaf = next(iter(policy.observations.items()))
    assert isinstance(leaf, BoxSpace)
    rows = np.random.default_rng(2).standard_normal((*shape, *leaf.shape)).astype(np.float32)
    outputs, values = policy.outputs_and_values(params, {name: rows}, np)
    tensors = {key: torch.as_tensor(value) for key, value in params.items()}
    torch_outputs, torch_values = policy.outputs_and_values(tensors, {name: torch.as_tensor(rows)}, torch)
    assert outputs.shape == (*shape, policy.actions.num_outputs) == tuple(torch_outputs.shape)
    assert values.shape == shape == tuple(torch_values.shape)
    np.testing.assert_allclose(outputs, torch_outputs.numpy(), atol=1e-5)
    np.testing.assert_allclose(values, torch_values.numpy(), atol=1e-5)


def test_its_parameters_are_trained_under_their_names_and_matrices_begin_orthogonal() -> None:
    policy = made(Residual())
    params = policy.init_params(np.random.default_rng(0))
    trained = set(policy.trainable(params))
    assert {f"{PREFIX}in", f"{PREFIX}bias", f"{PREFIX}middle", "policy.weight", "value.weight"} <= trained
    middle = params[f"{PREFIX}middle"]
    np.testing.assert_allclose(middle.T @ middle, 2.0 * np.eye(16), atol=1e-5)
    assert not params[f"{PREFIX}bias"].any()
    assert (made(Scaled()).init_params(np.random.default_rng(0))[f"{PREFIX}bias"] == 0.5).all()


def test_memory_goes_on_top_of_the_layers() -> None:
    policy = made(Residual(), memory="gru", memory_units=8)
    assert isinstance(policy, MemoryPolicy)
    params = policy.init_params(np.random.default_rng(0))
    step = policy.stepper(params)
    rows = {next(iter(policy.observations)): np.ones((2, 4), np.float32)}
    outputs, memory = step(rows, np.zeros((2, policy.memory_size), np.float32))
    assert outputs.shape == (2, policy.actions.num_outputs)
    assert memory.any()


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_its_layers_make_the_values_of_actions(memory: str) -> None:
    policy = made(Residual(), action_values=True, memory=memory, memory_units=8)
    assert isinstance(policy.actions, EpsilonGreedy)
    assert isinstance(policy, MemoryPolicy) == (memory != "none")
    params = policy.init_params(np.random.default_rng(0))
    policy.check_params(params)
    assert f"{PREFIX}middle" in policy.trainable(params)
    try_own_layers(policy, written=WRITTEN)
    if memory == "none":
        rows = {
            next(iter(policy.observations)): np.random.default_rng(2)
            .standard_normal((5, 4))
            .astype(np.float32)
        }
        plain = made(Residual())
        advantages, values = plain.outputs_and_values(params, rows, np)
        q, best = policy.outputs_and_values(params, rows, np)
        np.testing.assert_allclose(
            q, advantages - advantages.mean(-1, keepdims=True) + values[:, None], atol=1e-6
        )
        np.testing.assert_array_equal(best, q.max(-1))
        np.testing.assert_array_equal(policy.runner(params)(rows), q)


def test_values_of_continuous_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="Discrete"):
        made(Residual(), PUSH, action_values=True)


class NoFeatures:
    def shapes(self, num_inputs: int) -> Any:
        return {"in": (num_inputs, 4)}


class NoShapes(Residual):
    def shapes(self, num_inputs: int) -> Any:
        return {}


class WrongShape(Residual):
    def shapes(self, num_inputs: int) -> Any:
        return {"in": "four"}


class OneNumber(Residual):
    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        return inputs.sum()


class Doubles(Residual):
    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        return (inputs @ params["in"]).astype(np.float64)


class OtherParameters(Residual):
    def init_params(self, num_inputs: int, rng: np.random.Generator) -> dict[str, Array]:
        return {"in": np.zeros((num_inputs, 16), np.float32)}


class Raises(Residual):
    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        return params["no such"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (NoFeatures(), r"it has no features\(params, inputs, xp\)"),
        (NoShapes(), "shapes returned {}"),
        (WrongShape(), "the shape of in is four"),
        (OneNumber(), r"features of 2 rows have the shape \(\)"),
        (Doubles(), "its features are float64"),
        (OtherParameters(), "init_params gives"),
        (Raises(), r"failed.*KeyError at \S*test_own_layers\.py:[0-9]+ in features: 'no such'"),
    ],
)
def test_code_that_is_no_network_is_refused(code: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(code)


class Differs(Residual):
    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        hidden = super().features(params, inputs, xp)
        return hidden if xp is np else hidden * 1.01


class Centred(Residual):
    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        hidden = super().features(params, inputs, xp)
        return hidden - hidden.mean(0)


class Idle(Residual):
    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        return xp.tanh(inputs @ params["in"])


class Infinite(Residual):
    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        return super().features(params, inputs, xp) * float("inf")


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (Differs(), "numpy and torch differ by"),
        (Centred(), "depends on the others of its batch"),
        (Idle(), "its features do not depend on bias, middle"),
        (Infinite(), "not finite"),
    ],
)
def test_trial_refuses_what_would_train_on_an_error(code: Any, said: str, memory: str) -> None:
    with pytest.raises(ConfigError, match=said):
        try_own_layers(made(code, memory=memory), written=WRITTEN)


@pytest.mark.parametrize("description", [CARTPOLE, PUSH])
def test_trial_accepts_layers_that_agree(description: EnvironmentDescription) -> None:
    try_own_layers(made(Residual(), description), written=WRITTEN)
    try_own_layers(made(Residual(), description, memory="gru"), written=WRITTEN)


def test_run_file_names_code_by_its_file_and_what_it_raises_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Net:\n    def __init__(self): raise ValueError('no layers')\n")
    assert own_policy_of(PolicyConfig(kind="mlp"), folder="") is None
    with pytest.raises(ConfigError, match=r"no 'mlq' among the policies.* name one of: mlp"):
        own_policy_of(PolicyConfig(kind="mlq"), folder="")
    with pytest.raises(ConfigError, match=r"mine\.py:Net failed.*ValueError at \S*mine\.py:2 in __init__"):
        load_policy_code(PolicyConfig(kind="mine.py:Net"), folder=str(tmp_path))


def test_actions_of_a_discrete_space_have_an_output_each() -> None:
    description = EnvironmentDescription("Made-v0", PUSH.observation_space, DiscreteSpace(5))
    assert made(Residual(), description).actions.num_outputs == 5
