"""Critics Q(s, a): dense layers over an observation's inputs and an action, several of one shape side by side.

The learner alone has them. Their weights are stacked, so that all critics of a layer are one operation: small networks
cost by operation, not by arithmetic.

Shapes: C critics, B rows, I inputs of an observation, K components of an action.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tidegate.core.records import Array
from tidegate.models.activations import Activation, activated
from tidegate.models.dense_layers import check_hidden
from tidegate.models.layers import HIDDEN_GAIN, VALUE_GAIN, orthogonal


class ActionValues:
    """``num_critics`` networks that share nothing but their shape.

    Raises:
        ConfigError: a layer has no units.
    """

    def __init__(
        self,
        *,
        num_inputs: int,
        num_components: int,
        hidden: tuple[int, ...],
        activation: Activation,
        num_critics: int = 2,
    ) -> None:
        check_hidden(hidden)
        self._num_components = num_components
        self._sizes = (num_inputs + num_components, *hidden, 1)
        self._activation: Activation = activation
        self._num_critics = num_critics
        self._layers = [(f"{layer}.weight", f"{layer}.bias") for layer in range(len(hidden) + 1)]

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's shape by name; weights are (C, inputs, outputs), biases (C, 1, outputs)."""
        shapes: dict[str, tuple[int, ...]] = {}
        for (weight, bias), (before, after) in zip(self._layers, pairwise(self._sizes), strict=True):
            shapes[weight] = (self._num_critics, before, after)
            shapes[bias] = (self._num_critics, 1, after)
        return shapes

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters, float32: orthogonal weights, biases zero; each critic's own."""
        params: dict[str, Array] = {}
        for name, shape in self.parameter_shapes().items():
            if not name.endswith(".weight"):
                params[name] = np.zeros(shape, np.float32)
                continue
            gain = VALUE_GAIN if name == self._layers[-1][0] else HIDDEN_GAIN
            _, before, after = shape
            each = [orthogonal((before, after), rng, gain=gain) for _ in range(self._num_critics)]
            params[name] = np.ascontiguousarray(np.stack(each))
        return params

    def __call__(self, params: Mapping[str, Tensor], inputs_BI: Tensor, actions: Tensor) -> Tensor:
        """The value (C, B) of each action (B, *action_shape) after its observation's inputs."""
        rows_BJ = torch.cat([inputs_BI, actions.reshape(len(actions), self._num_components)], dim=1)
        hidden = rows_BJ.expand(self._num_critics, *rows_BJ.shape)
        for layer, (weight, bias) in enumerate(self._layers):
            if layer:
                hidden = activated(hidden, self._activation, torch)
            hidden = torch.baddbmm(params[bias], hidden, params[weight])
        return hidden[..., 0]
