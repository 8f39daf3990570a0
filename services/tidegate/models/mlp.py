"""Two small networks over flat observations: a policy, and for actor-critic objectives a value.

The maths is written once and runs under numpy in actors, which never load torch, and under torch in the learner.
Parameters are one flat dict of float32 arrays by name, as published. The two networks share nothing, so that an actor
computes only one, and an inaccurate value does not distort the policy's features.

Shapes: I inputs, the observation's components and one-hot vectors; P outputs of the action distribution.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, observation_leaves
from tidegate.models.activations import Activation
from tidegate.models.array_functions import ArrayModule
from tidegate.models.dense_layers import check_hidden, dense_layers
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
from tidegate.models.policy_port import PairRunner, PolicyRunner
from tidegate.models.scaled_inputs import FIXED, ScaledInputs

TensorT = TypeVar("TensorT")


class MlpPolicy:
    """``models.policy_port.SegmentPolicy`` with dense layers alone.

    ``hidden``: units of each layer, of either network. ``input_scale``: factor of each input, to bring it near ±1; much
    smaller ones are learnt late. Empty scales none. ``normalise_observations``: by running mean and variance instead.
    ``has_value``: whether it has a value network; without one the methods that compute values are not for use.
    ``inputs``: what the networks make of observations.

    Raises:
        ConfigError: a layer has no units, or ``input_scale`` has another length than the inputs.
    """

    memory_size = 0

    def __init__(
        self,
        description: EnvironmentDescription,
        actions: ActionDistribution,
        *,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        input_scale: tuple[float, ...] = (),
        normalise_observations: bool = False,
        has_value: bool = True,
    ) -> None:
        self.description = description
        self.observations = observation_leaves(description.observation_space)
        self.actions = actions
        self.inputs = ScaledInputs(description, input_scale=input_scale, normalise=normalise_observations)
        self.has_statistics = self.inputs.has_statistics
        self.hidden = hidden
        self.activation: Activation = activation
        self.layers = {
            network: [
                (f"{network}.{layer}.weight", f"{network}.{layer}.bias") for layer in range(len(hidden) + 1)
            ]
            for network in (("policy", "value") if has_value else ("policy",))
        }
        check_hidden(hidden)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SegmentPolicy``; weights are (inputs, outputs)."""
        num_inputs = self.inputs.num_inputs
        shapes = self.inputs.shapes()
        num_shared = self.actions.num_shared_outputs
        for network in self.layers:
            num_outputs = 1 if network == "value" else self.actions.num_outputs - num_shared
            sizes = (num_inputs, *self.hidden, num_outputs)
            for layer, (before, after) in enumerate(pairwise(sizes)):
                shapes[f"{network}.{layer}.weight"] = (before, after)
                shapes[f"{network}.{layer}.bias"] = (after,)
        if num_shared:
            shapes[SHARED_OUTPUTS] = (num_shared,)
        return shapes

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters: orthogonal weights, biases and shared outputs zero, and the inputs' scale or statistics."""
        last_layer = len(self.hidden)
        gains = {f"policy.{last_layer}.weight": POLICY_GAIN, f"value.{last_layer}.weight": VALUE_GAIN}
        params: dict[str, Array] = {}
        for name, shape in self.parameter_shapes().items():
            if name.endswith(".weight"):
                num_before, num_after = shape
                params[name] = orthogonal((num_before, num_after), rng, gain=gains.get(name, HIDDEN_GAIN))
            else:
                params[name] = np.zeros(shape, dtype=np.float32)
        return params | self.inputs.init_params()

    def check_params(self, params: Mapping[str, Array]) -> None:
        """See ``SegmentPolicy``."""
        check_tensors(
            self.parameter_shapes(),
            params,
            policy=f"an mlp of {self.hidden} for {self.description.env_id}",
        )

    def trainable(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """See ``SegmentPolicy``."""
        return {name: value for name, value in params.items() if name not in FIXED}

    def action_outputs(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> Any:
        """See ``SegmentPolicy``."""
        return self.outputs_of(params, self.inputs(params, observations, xp), xp)

    def values(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``SegmentPolicy``."""
        return self._network("value", params, self.inputs(params, observations, xp), xp)[..., 0]

    def outputs_and_values(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> tuple[Any, Any]:
        """See ``SegmentPolicy``."""
        inputs = self.inputs(params, observations, xp)
        return self.outputs_of(params, inputs, xp), self._network("value", params, inputs, xp)[..., 0]

    @property
    def num_features(self) -> int:
        """See ``FeaturePolicy``: all inputs."""
        return self.inputs.num_inputs

    def features(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``FeaturePolicy``."""
        return self.inputs(params, observations, xp)

    def outputs_of(self, params: Mapping[str, Any], features: Any, xp: ArrayModule) -> Any:
        """See ``FeaturePolicy``."""
        return with_shared_outputs(self._network("policy", params, features, xp), params, xp)

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
        return self.inputs.updated_statistics(params, observations)

    def _network(self, name: str, params: Mapping[str, Any], inputs: Any, xp: ArrayModule) -> Any:
        layers = [(params[weight], params[bias]) for weight, bias in self.layers[name]]
        return dense_layers(inputs, layers, self.activation, xp, activates_last=False)
