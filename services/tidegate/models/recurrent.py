"""A policy with memory: dense layers, a recurrent cell, and on it the policy and the value.

Policy and value share everything below their last layer, because a state is recorded once for both.

Shapes: B rows, M numbers of state, R rows of packed sequences, Q sequences, P outputs of the action distribution.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, observation_leaves
from tidegate.models.array_functions import ArrayModule
from tidegate.models.distributions import ActionDistribution
from tidegate.models.layers import (
    HIDDEN_GAIN,
    POLICY_GAIN,
    SHARED_OUTPUTS,
    VALUE_GAIN,
    check_tensors,
    orthogonal,
    with_shared_outputs,
)
from tidegate.models.memory_cells import STATE_PARTS, Cell, cell_shapes, cell_step, init_cell, unrolled
from tidegate.models.mlp import Activation, activated, check_hidden
from tidegate.models.policy_port import PolicyRunner
from tidegate.models.scaled_inputs import FIXED, ScaledInputs

TensorT = TypeVar("TensorT")


class RecurrentPolicy:
    """``models.policy_port.SegmentPolicy`` with ``hidden`` dense layers and then a ``cell`` of ``num_units``.

    Actors compute it by ``step``, the learner by ``unrolled``.
    """

    def __init__(
        self,
        description: EnvironmentDescription,
        actions: ActionDistribution,
        *,
        cell: Cell,
        num_units: int = 64,
        hidden: tuple[int, ...] = (64,),
        activation: Activation = "tanh",
        input_scale: tuple[float, ...] = (),
        normalise_observations: bool = False,
    ) -> None:
        """Raises ConfigError if a setting does not fit the environment."""
        self.description = description
        self.observations = observation_leaves(description.observation_space)
        self.actions = actions
        self.memory_size = STATE_PARTS[cell] * num_units
        self._inputs = ScaledInputs(description, input_scale=input_scale, normalise=normalise_observations)
        self.has_statistics = self._inputs.has_statistics
        self._cell: Cell = cell
        self._num_units = num_units
        self._hidden = hidden
        self._activation: Activation = activation
        check_hidden(hidden)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SegmentPolicy``; weights are (inputs, outputs)."""
        shapes = self._inputs.shapes()
        sizes = (self._inputs.num_inputs, *self._hidden)
        for layer, (before, after) in enumerate(pairwise(sizes)):
            shapes[f"trunk.{layer}.weight"] = (before, after)
            shapes[f"trunk.{layer}.bias"] = (after,)
        shapes |= cell_shapes(self._cell, num_features=sizes[-1], num_units=self._num_units)
        num_shared = self.actions.num_shared_outputs
        for head, num_outputs in (("policy", self.actions.num_outputs - num_shared), ("value", 1)):
            shapes[f"{head}.weight"] = (self._num_units, num_outputs)
            shapes[f"{head}.bias"] = (num_outputs,)
        if num_shared:
            shapes[SHARED_OUTPUTS] = (num_shared,)
        return shapes

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters: orthogonal weights, zero biases and shared outputs."""
        gains = {"policy.weight": POLICY_GAIN, "value.weight": VALUE_GAIN}
        num_features = (self._inputs.num_inputs, *self._hidden)[-1]
        cell = init_cell(self._cell, num_features=num_features, num_units=self._num_units, rng=rng)
        params: dict[str, Array] = {}
        for name, shape in self.parameter_shapes().items():
            if name in cell:
                params[name] = cell[name]
            elif name.endswith(".weight"):
                num_before, num_after = shape
                params[name] = orthogonal((num_before, num_after), rng, gain=gains.get(name, HIDDEN_GAIN))
            else:
                params[name] = np.zeros(shape, np.float32)
        return params | self._inputs.init_params()

    def check_params(self, params: Mapping[str, Array]) -> None:
        """See ``SegmentPolicy``."""
        policy = f"a policy with a {self._cell} of {self._num_units} units for {self.description.env_id}"
        check_tensors(self.parameter_shapes(), params, policy=policy)

    def trainable(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """See ``SegmentPolicy``."""
        return {name: value for name, value in params.items() if name not in FIXED}

    def action_outputs(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> Any:
        """Refuse, see ``_refusal``."""
        raise self._refusal()

    def values(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """Refuse, see ``_refusal``."""
        raise self._refusal()

    def outputs_and_values(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> tuple[Any, Any]:
        """Refuse, see ``_refusal``."""
        raise self._refusal()

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PolicyRunner:
        """Refuse, see ``_refusal``."""
        raise self._refusal()

    def _refusal(self) -> ConfigError:
        """Without its state the outputs of a policy with memory would be those of an episode's first step."""
        return ConfigError(
            "A policy with memory cannot be used on single observations",
            why=f"its {self._cell} carries a state from step to step",
            fix="use a policy without memory (policy.memory: none) for this",
        )

    def step(
        self, params: Mapping[str, Array], observations: Mapping[str, Array], memory_BM: Array
    ) -> tuple[Array, Array]:
        """Outputs (B, P) of one step of an actor, and the state (B, M) after it, from the one before it."""
        features_BF = self._features(params, observations, np)
        hidden_BH, memory_BM = cell_step(self._cell, params, features_BF, memory_BM)
        outputs = hidden_BH @ params["policy.weight"] + params["policy.bias"]
        return with_shared_outputs(outputs, params, np), memory_BM

    def unrolled(
        self,
        params: Mapping[str, Any],
        observations: Mapping[str, Any],
        memory_QM: Any,
        batch_sizes: Any,
        xp: ArrayModule,
    ) -> tuple[Any, Any]:
        """Outputs (R, P) and values (R,) of whole sequences; ``xp`` is torch.

        ``observations``: (R, *leaf shape) in the order of ``memory_cells.unrolled``; ``memory_QM``: the state before
        each sequence.
        """
        features_RF = self._features(params, observations, xp)
        hidden_RH = unrolled(self._cell, params, features_RF, memory_QM, batch_sizes, xp)
        outputs = hidden_RH @ params["policy.weight"] + params["policy.bias"]
        values = hidden_RH @ params["value.weight"] + params["value.bias"]
        return with_shared_outputs(outputs, params, xp), values[..., 0]

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        return self._inputs.updated_statistics(params, observations)

    def _features(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        features = self._inputs(params, observations, xp)
        for layer in range(len(self._hidden)):
            features = features @ params[f"trunk.{layer}.weight"] + params[f"trunk.{layer}.bias"]
            features = activated(features, self._activation, xp)
        return features
