"""A policy with memory: dense layers or convolutions, a recurrent cell, and on it the policy and the value.

Policy and value share everything below their last layer, because a state is recorded once for both.

Shapes: B rows, M numbers of state, R rows of packed sequences, Q sequences, P outputs of the action distribution.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, observation_leaves
from tidegate.models.array_functions import ArrayModule
from tidegate.models.distributions import ActionDistribution
from tidegate.models.feature_layers import FeatureLayers
from tidegate.models.heads import head_shapes, with_heads
from tidegate.models.layers import check_tensors, with_shared_outputs
from tidegate.models.memory_cells import STATE_PARTS, Cell, cell_shapes, cell_step, init_cell, unrolled
from tidegate.models.policy_port import PairStepper, PolicyRunner, VersionRunner
from tidegate.models.scaled_inputs import FIXED

TensorT = TypeVar("TensorT")


class RecurrentPolicy:
    """``models.policy_port.MemoryPolicy`` with ``layers`` and then a ``cell`` of ``num_units``.

    Actors compute it by ``stepper``, the learner by ``unrolled``.
    """

    def __init__(
        self,
        description: EnvironmentDescription,
        actions: ActionDistribution,
        *,
        layers: FeatureLayers,
        cell: Cell,
        num_units: int = 64,
    ) -> None:
        self.description = description
        self.observations = observation_leaves(description.observation_space)
        self.actions = actions
        self.memory_size = STATE_PARTS[cell] * num_units
        self.has_statistics = layers.has_statistics
        self._layers = layers
        self._cell: Cell = cell
        self._num_units = num_units

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SegmentPolicy``; weights are (inputs, outputs)."""
        shapes = self._layers.shapes()
        shapes |= cell_shapes(self._cell, num_features=self._layers.num_features, num_units=self._num_units)
        return shapes | head_shapes(self._num_units, self.actions)

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters: orthogonal weights, zero biases and shared outputs."""
        num_features = self._layers.num_features
        params = init_cell(self._cell, num_features=num_features, num_units=self._num_units, rng=rng)
        params |= self._layers.init_params(rng)
        return with_heads(params, self.parameter_shapes(), rng)

    def check_params(self, params: Mapping[str, Array]) -> None:
        """See ``SegmentPolicy``."""
        cell = f"a {self._cell} of {self._num_units} units"
        policy = f"{self._layers.name} with {cell} for {self.description.env_id}"
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

    def stepper(self, params: Mapping[str, Array], *, threads: int = 1) -> VersionRunner:
        """See ``MemoryPolicy``."""
        features = self._layers.runner(params, threads=threads)

        def step(observations: Mapping[str, Array], memory_BM: Array) -> tuple[Array, Array]:
            hidden_BH, memory_BM = cell_step(self._cell, params, features(observations), memory_BM)
            return self._outputs(params, hidden_BH, np), memory_BM

        return step

    def pair_stepper(self, params: Mapping[str, Array], *, threads: int = 1) -> PairStepper:
        """As ``stepper``, of outputs and values."""
        features = self._layers.runner(params, threads=threads)

        def step(observations: Mapping[str, Array], memory_BM: Array) -> tuple[Array, Array, Array]:
            hidden_BH, memory_BM = cell_step(self._cell, params, features(observations), memory_BM)
            return self._outputs(params, hidden_BH, np), self._values(params, hidden_BH), memory_BM

        return step

    def unrolled(
        self,
        params: Mapping[str, Any],
        observations: Mapping[str, Any],
        memory_QM: Any,
        batch_sizes: Any,
        xp: ArrayModule,
    ) -> tuple[Any, Any]:
        """See ``MemoryPolicy``."""
        features_RF = self._layers.features(params, observations, xp)
        # Convolutions may compute in a lower precision; a state that runs through many steps does not.
        with xp.autocast(features_RF.device.type, enabled=False):
            hidden_RH, _ = unrolled(self._cell, params, features_RF.float(), memory_QM, batch_sizes, xp)
            return self._outputs(params, hidden_RH, xp), self._values(params, hidden_RH)

    def memory_after(
        self,
        params: Mapping[str, Any],
        observations: Mapping[str, Any],
        memory_QM: Any,
        batch_sizes: Any,
        xp: ArrayModule,
    ) -> Any:
        """See ``MemoryPolicy``."""
        features_RF = self._layers.features(params, observations, xp)
        with xp.autocast(features_RF.device.type, enabled=False):
            return unrolled(self._cell, params, features_RF.float(), memory_QM, batch_sizes, xp)[1]

    def _outputs(self, params: Mapping[str, Any], hidden: Any, xp: ArrayModule) -> Any:
        outputs = hidden @ params["policy.weight"] + params["policy.bias"]
        return with_shared_outputs(outputs, params, xp)

    @staticmethod
    def _values(params: Mapping[str, Any], hidden: Any) -> Any:
        return (hidden @ params["value.weight"] + params["value.bias"])[..., 0]

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        return self._layers.updated_statistics(params, observations)
