"""``models.dense_layers`` under torch as one node of the graph, with its backward pass written out.

A gradient step of a small network is mostly torch's cost of an operation, not arithmetic: of 256 rows through two
networks of 64 units, a tenth of a millisecond of arithmetic in 1.6 ms. One node with a matrix product and an activation
in place a layer makes an update of CartPole an eighth cheaper. Tanh is numpy's where memory is the CPU's: six times as
fast as torch's, and to the bit what actors compute.

The learner's ``DenseGradients`` runs the two passes without a graph. Only a process that trains imports this module.

Shapes: B rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tidegate.models.activations import Activation


def torch_dense_layers(
    inputs: Tensor, layers: Sequence[tuple[Tensor, Tensor]], activation: Activation, *, activates_last: bool
) -> Tensor:
    """See ``dense_layers``."""
    flat = [tensor for layer in layers for tensor in layer]
    rows = inputs.reshape(-1, inputs.shape[-1])
    units = cast(
        "Tensor",
        _Dense.apply(rows, activation, activates_last, *flat),  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)
    )
    return units.view(*inputs.shape[:-1], units.shape[-1])


class _Dense(torch.autograd.Function):
    """Rows (B, I) to units (B, U); after them the layers' weights and biases in turns."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, activation: Activation, activates_last: bool, *layers: Tensor
    ) -> Tensor:
        weights, biases = layers[::2], layers[1::2]
        kept = layer_units(rows, weights, biases, activation, activates_last=activates_last)
        ctx.activation, ctx.activates_last = activation, activates_last
        ctx.save_for_backward(*kept, *weights)
        return kept[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        num_layers = (len(ctx.saved_tensors) - 1) // 2
        kept, weights = ctx.saved_tensors[: num_layers + 1], ctx.saved_tensors[num_layers + 1 :]
        needs = ctx.needs_input_grad
        into = LayerGradients(
            weights=[
                torch.empty_like(each) if needs[3 + 2 * at] else None for at, each in enumerate(weights)
            ],
            biases=[
                each.new_empty(each.shape[1]) if needs[4 + 2 * at] else None
                for at, each in enumerate(weights)
            ],
        )
        by_rows = backpropagate_layers(
            gradient,
            kept,
            weights,
            ctx.activation,
            activates_last=ctx.activates_last,
            into=into,
            by_rows=needs[0],
        )
        in_turns = (each for pair in zip(into.weights, into.biases, strict=True) for each in pair)
        return (by_rows, None, None, *in_turns)


@dataclass(frozen=True, slots=True)
class LayerGradients:
    """Where the gradients of each layer's weight and bias are written; None for one that is not wanted."""

    weights: Sequence[Tensor | None]
    biases: Sequence[Tensor | None]


def layer_units(
    rows: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: Activation,
    *,
    activates_last: bool,
) -> list[Tensor]:
    """``rows`` (B, I) and each layer's units (B, ...) above them, which ``backpropagate_layers`` takes."""
    kept = [rows]
    for weight, bias in zip(weights, biases, strict=True):
        rows = torch.addmm(bias, rows, weight)
        if activates_last or len(kept) < len(weights):
            _activate(rows, activation)
        kept.append(rows)
    return kept


def backpropagate_layers(
    gradient: Tensor,
    kept: Sequence[Tensor],
    weights: Sequence[Tensor],
    activation: Activation,
    *,
    activates_last: bool,
    into: LayerGradients,
    by_rows: bool = False,
) -> Tensor | None:
    """Write the parameters' gradients from that by the last units (B, U); returns that by the rows if asked for."""
    for layer in reversed(range(len(weights))):
        if activates_last or layer < len(weights) - 1:
            gradient = _through_activation(gradient, kept[layer + 1], activation)
        if (of_weight := into.weights[layer]) is not None:
            torch.mm(kept[layer].t(), gradient, out=of_weight)
        if (of_bias := into.biases[layer]) is not None:
            torch.sum(gradient, 0, out=of_bias)
        if layer or by_rows:
            gradient = gradient @ weights[layer].t()
    return gradient if by_rows else None


def _activate(values: Tensor, activation: Activation) -> None:
    if activation == "relu":
        values.relu_()
    elif values.device.type == "cpu" and values.dtype == torch.float32:
        array = values.numpy()
        np.tanh(array, out=array)
    else:
        values.tanh_()


def _through_activation(gradient: Tensor, activated: Tensor, activation: Activation) -> Tensor:
    """The gradient by an activation's input, of that by its output and of the output."""
    if activation == "relu":
        return torch.ops.aten.threshold_backward(gradient, activated, 0)
    return torch.ops.aten.tanh_backward(gradient, activated)
