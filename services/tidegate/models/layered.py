"""A policy of layers of a user's own: a policy head and a value head on their features.

Shapes: B observations, I inputs, F features, P outputs of the action distribution.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, observation_leaves, recorded_shape
from tidegate.models.array_functions import ArrayModule
from tidegate.models.distributions import ActionDistribution
from tidegate.models.heads import head_shapes, with_heads
from tidegate.models.layers import check_tensors, with_shared_outputs
from tidegate.models.own_layers import OwnLayers
from tidegate.models.policy_port import PairRunner, PolicyRunner
from tidegate.models.scaled_inputs import FIXED

TensorT = TypeVar("TensorT")


class LayeredPolicy:
    """``models.policy_port.FeaturePolicy`` with ``layers``, whose features policy and value share.

    What critics of actions read are the inputs: they have layers of their own, and the value is not trained then.
    """

    memory_size = 0

    def __init__(
        self, description: EnvironmentDescription, actions: ActionDistribution, *, layers: OwnLayers
    ) -> None:
        self.description = description
        self.observations = observation_leaves(description.observation_space)
        self.actions = actions
        self.has_statistics = layers.has_statistics
        self._layers = layers

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SegmentPolicy``; weights are (inputs, outputs)."""
        shapes = self._layers.shapes()
        return shapes | head_shapes(self._layers.num_features, self.actions)

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters: those of the layers, heads of orthogonal weights, biases and shared outputs zero."""
        params = self._layers.init_params(rng)
        return with_heads(params, self.parameter_shapes(), rng)

    def check_params(self, params: Mapping[str, Array]) -> None:
        """See ``SegmentPolicy``."""
        policy = f"{self._layers.name} for {self.description.env_id}"
        check_tensors(self.parameter_shapes(), params, policy=policy)

    def trainable(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """See ``SegmentPolicy``."""
        return {name: value for name, value in params.items() if name not in FIXED}

    def action_outputs(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> Any:
        """See ``SegmentPolicy``."""
        return self.outputs_and_values(params, observations, xp)[0]

    def values(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``SegmentPolicy``."""
        return self.outputs_and_values(params, observations, xp)[1]

    def outputs_and_values(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> tuple[Any, Any]:
        """See ``SegmentPolicy``. The layers get rows (B, *leaf shape), whatever the dimensions before are."""
        rows = {
            name: observations[name].reshape(-1, *recorded_shape(leaf))
            for name, leaf in self.observations.items()
        }
        name, leaf = next(iter(self.observations.items()))
        leading = tuple(observations[name].shape)[: observations[name].ndim - len(recorded_shape(leaf))]
        features = self._layers.features(params, rows, xp)
        outputs = self._outputs(params, features, xp)
        values = (features @ params["value.weight"] + params["value.bias"])[..., 0]
        return outputs.reshape(*leading, outputs.shape[-1]), values.reshape(leading)

    @property
    def num_features(self) -> int:
        """See ``FeaturePolicy``: all inputs."""
        return self._layers.inputs.num_inputs

    def features(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``FeaturePolicy``."""
        return self._layers.inputs(params, observations, xp)

    def outputs_of(self, params: Mapping[str, Any], features: Any, xp: ArrayModule) -> Any:
        """See ``FeaturePolicy``."""
        return self._outputs(params, self._layers.of_inputs(params, features, xp), xp)

    def feature_parameters(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """See ``FeaturePolicy``: none."""
        del params
        return {}

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PolicyRunner:
        """See ``SegmentPolicy``."""
        return lambda observations: self.action_outputs(params, observations, np)

    def pair_runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PairRunner:
        """As ``runner``, of outputs and values."""
        return lambda observations: self.outputs_and_values(params, observations, np)

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        return self._layers.updated_statistics(params, observations)

    @staticmethod
    def _outputs(params: Mapping[str, Any], features: Any, xp: ArrayModule) -> Any:
        outputs = features @ params["policy.weight"] + params["policy.bias"]
        return with_shared_outputs(outputs, params, xp)
