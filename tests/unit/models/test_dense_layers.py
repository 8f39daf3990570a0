"""Dense layers as one node of the graph, beside autograd of the same formula written layer by layer."""

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tidegate.models.activations import Activation, activated
from tidegate.models.dense_layers import dense_layers

ACTIVATIONS: tuple[Activation, ...] = ("tanh", "relu")


def made(seed: int, shape: tuple[int, ...], *, inputs_need: bool = True) -> tuple[Tensor, list[Tensor]]:
    """Inputs (..., 3), and weights and biases in turns of layers of 5, 4 and 2 units."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(*shape, 3, generator=generator, dtype=torch.float64)
    sizes = (3, 5, 4, 2)
    parameters: list[Tensor] = []
    for before, after in pairwise(sizes):
        parameters.append(torch.randn(before, after, generator=generator, dtype=torch.float64))
        parameters.append(torch.randn(after, generator=generator, dtype=torch.float64))
    return inputs.requires_grad_(inputs_need), [each.requires_grad_() for each in parameters]


def by_autograd(inputs: Tensor, parameters: list[Tensor], activation: Activation, *, last: bool) -> Tensor:
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    for position, (weight, bias) in enumerate(layers):
        inputs = inputs @ weight + bias
        if last or position < len(layers) - 1:
            inputs = activated(inputs, activation, torch)
    return inputs


def in_one_node(inputs: Tensor, parameters: list[Tensor], activation: Activation, *, last: bool) -> Tensor:
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    return dense_layers(inputs, layers, activation, torch, activates_last=last)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("last", [False, True])
@given(seed=st.integers(0, 2**31), shape=st.sampled_from([(), (1,), (7,), (0,), (2, 3)]))
def test_values_and_gradients_equal_autograd_of_the_formula(
    activation: Activation, last: bool, seed: int, shape: tuple[int, ...]
) -> None:
    inputs, parameters = made(seed, shape)
    expected = by_autograd(inputs, parameters, activation, last=last)
    found = in_one_node(inputs, parameters, activation, last=last)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected)
    weights = torch.linspace(-1.0, 2.0, expected.numel(), dtype=torch.float64).view_as(expected)
    of_all = [inputs, *parameters]
    torch.testing.assert_close(
        torch.autograd.grad((found * weights).sum(), of_all),
        torch.autograd.grad((expected * weights).sum(), of_all),
    )


def test_parameters_without_a_gradient_get_none() -> None:
    inputs, parameters = made(3, (4,), inputs_need=False)
    parameters[2].requires_grad_(False)
    total = in_one_node(inputs, parameters, "tanh", last=False).sum()
    total.backward()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)
    assert [each.grad is not None for each in (inputs, *parameters)] == [
        False,
        True,
        True,
        False,
        *[True] * 3,
    ]


def test_tanh_of_the_learner_is_to_the_bit_that_of_actors() -> None:
    values = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)
    weight, bias = np.eye(8, dtype=np.float32), np.zeros(8, np.float32)
    found = dense_layers(
        torch.tensor(values), [(torch.tensor(weight), torch.tensor(bias))], "tanh", torch, activates_last=True
    )
    np.testing.assert_array_equal(found.numpy(), np.tanh(values))


def test_autocast_keeps_choosing_the_precision() -> None:
    inputs, parameters = made(5, (6,))
    inputs, parameters = inputs.float(), [each.detach().float() for each in parameters]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = in_one_node(inputs, parameters, "tanh", last=True)
        expected = by_autograd(inputs, parameters, "tanh", last=True)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_a_device_without_memory_has_shapes() -> None:
    inputs, parameters = made(2, (6,))
    found = in_one_node(inputs.to("meta"), [each.to("meta") for each in parameters], "tanh", last=False)
    assert (found.shape, found.device.type) == ((6, 2), "meta")
