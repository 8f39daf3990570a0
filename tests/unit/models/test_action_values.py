import numpy as np
import pytest
import torch

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.models.action_values import ActionValues
from tidegate.models.activations import Activation

NUM_INPUTS, NUM_COMPONENTS, HIDDEN = 5, 2, (8, 4)


def network(activation: Activation = "relu", *, num_critics: int = 2) -> ActionValues:
    return ActionValues(
        num_inputs=NUM_INPUTS,
        num_components=NUM_COMPONENTS,
        hidden=HIDDEN,
        activation=activation,
        num_critics=num_critics,
    )


def slow_values(params: dict[str, Array], rows: Array, *, critic: int, activation: Activation) -> list[float]:
    """One critic, one row and one unit at a time."""
    found: list[float] = []
    for row in rows:
        units = [float(value) for value in row]
        for layer in range(len(HIDDEN) + 1):
            weights, biases = params[f"{layer}.weight"][critic], params[f"{layer}.bias"][critic, 0]
            if layer:
                units = [np.tanh(unit) if activation == "tanh" else max(0.0, unit) for unit in units]
            units = [
                float(sum(unit * weight for unit, weight in zip(units, weights[:, k], strict=True)) + bias)
                for k, bias in enumerate(biases)
            ]
        found.append(units[0])
    return found


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_stacked_critics_are_separate_networks_of_observation_and_action(activation: Activation) -> None:
    rng = np.random.default_rng(0)
    critics = network(activation, num_critics=3)
    params = {
        name: array + rng.normal(0.0, 0.1, array.shape).astype(np.float32)
        for name, array in critics.init_params(rng).items()
    }
    inputs_BI = rng.normal(size=(6, NUM_INPUTS)).astype(np.float32)
    actions_BK = rng.uniform(-1.0, 1.0, (6, NUM_COMPONENTS)).astype(np.float32)
    tensors = {name: torch.tensor(array) for name, array in params.items()}
    found_CB = critics(tensors, torch.tensor(inputs_BI), torch.tensor(actions_BK))
    rows = np.concatenate([inputs_BI, actions_BK], axis=1)
    expected = [slow_values(params, rows, critic=critic, activation=activation) for critic in range(3)]
    np.testing.assert_allclose(found_CB.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_fresh_critics_differ_and_have_the_declared_shapes() -> None:
    critics = network()
    params = critics.init_params(np.random.default_rng(1))
    assert {name: array.shape for name, array in params.items()} == critics.parameter_shapes()
    assert all(array.dtype == np.float32 for array in params.values())
    for name, array in params.items():
        if name.endswith("weight"):
            assert not np.allclose(array[0], array[1])


def test_actions_of_any_shape_are_taken_flat() -> None:
    critics = network()
    tensors = {n: torch.tensor(a) for n, a in critics.init_params(np.random.default_rng(2)).items()}
    inputs_BI, actions_BK = torch.randn(4, NUM_INPUTS), torch.rand(4, NUM_COMPONENTS)
    torch.testing.assert_close(
        critics(tensors, inputs_BI, actions_BK.reshape(4, NUM_COMPONENTS, 1)),
        critics(tensors, inputs_BI, actions_BK),
    )


def test_layer_without_units_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs units"):
        ActionValues(num_inputs=1, num_components=1, hidden=(4, 0), activation="relu")
