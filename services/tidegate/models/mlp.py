"""Two small networks over flat observations: a policy, and a value.

The maths is written once and runs under numpy in actors, which never load torch, and under torch in the learner.
Parameters are one flat dict of float32 arrays by name, as published. The two networks share nothing, so that an actor
computes only one, and an inaccurate value does not distort the policy's features.

Shapes: I inputs, the observation's components and one-hot vectors; P outputs of the action distribution.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, observation_leaves
from tidegate.models import normaliser
from tidegate.models.array_functions import ArrayModule
from tidegate.models.distributions import ActionDistribution
from tidegate.models.inputs import FlatInputs
from tidegate.models.layers import (
    HIDDEN_GAIN,
    POLICY_GAIN,
    SHARED_OUTPUTS,
    VALUE_GAIN,
    check_tensors,
    orthogonal,
    with_shared_outputs,
)
from tidegate.models.policy_port import PolicyRunner

Activation = Literal["tanh", "relu"]
INPUT_SCALE = "input_scale"
TensorT = TypeVar("TensorT")


class MlpPolicy:
    """``models.policy_port.SegmentPolicy`` with dense layers alone.

    ``hidden``: units of each layer, of either network. ``input_scale``: factor of each input, to bring it near ±1; much
    smaller ones are learnt late. Empty scales none. ``normalise_observations``: by running mean and variance instead.

    Raises:
        ConfigError: a layer has no units, or ``input_scale`` has another length than the inputs.
    """

    def __init__(
        self,
        description: EnvironmentDescription,
        actions: ActionDistribution,
        *,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        input_scale: tuple[float, ...] = (),
        normalise_observations: bool = False,
    ) -> None:
        self.description = description
        self.observations = observation_leaves(description.observation_space)
        self.actions = actions
        self._inputs = FlatInputs(self.observations)
        self._hidden = hidden
        self._activation = activation
        self._input_scale = input_scale
        self.has_statistics = normalise_observations
        self._layers = {
            network: [
                (f"{network}.{layer}.weight", f"{network}.{layer}.bias") for layer in range(len(hidden) + 1)
            ]
            for network in ("policy", "value")
        }
        if min(hidden, default=1) < 1:
            raise ConfigError(f"Each layer of policy.hidden needs units, not {hidden}")
        if input_scale and normalise_observations:
            raise ConfigError(
                "policy.input_scale and policy.normalise_observations are both set",
                why="a normalised input is near ±1 without a factor",
                fix="remove one of them",
            )
        if input_scale and len(input_scale) != self._inputs.num_inputs:
            raise ConfigError(
                f"policy.input_scale has {len(input_scale)} factors for {self._inputs.num_inputs} inputs",
                why=f"{description.env_id} observes {description.observation_space}",
                fix="give one factor per input, or none",
            )

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SegmentPolicy``; weights are (inputs, outputs)."""
        num_inputs = self._inputs.num_inputs
        shapes: dict[str, tuple[int, ...]] = {INPUT_SCALE: (num_inputs,)}
        if self.has_statistics:
            shapes = normaliser.statistics_shapes(num_inputs)
        num_shared = self.actions.num_shared_outputs
        for network, num_outputs in (("policy", self.actions.num_outputs - num_shared), ("value", 1)):
            sizes = (num_inputs, *self._hidden, num_outputs)
            for layer, (before, after) in enumerate(pairwise(sizes)):
                shapes[f"{network}.{layer}.weight"] = (before, after)
                shapes[f"{network}.{layer}.bias"] = (after,)
        if num_shared:
            shapes[SHARED_OUTPUTS] = (num_shared,)
        return shapes

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters: orthogonal weights, biases and shared outputs zero, and the inputs' scale or statistics."""
        last_layer = len(self._hidden)
        gains = {f"policy.{last_layer}.weight": POLICY_GAIN, f"value.{last_layer}.weight": VALUE_GAIN}
        params: dict[str, Array] = {}
        for name, shape in self.parameter_shapes().items():
            if name.endswith(".weight"):
                num_before, num_after = shape
                params[name] = orthogonal((num_before, num_after), rng, gain=gains.get(name, HIDDEN_GAIN))
            else:
                params[name] = np.zeros(shape, dtype=np.float32)
        num_inputs = self._inputs.num_inputs
        if self.has_statistics:
            return params | normaliser.init_statistics(num_inputs)
        return params | {INPUT_SCALE: np.array(self._input_scale or (1.0,) * num_inputs, np.float32)}

    def check_params(self, params: Mapping[str, Array]) -> None:
        """See ``SegmentPolicy``."""
        check_tensors(
            self.parameter_shapes(),
            params,
            policy=f"an mlp of {self._hidden} for {self.description.env_id}",
        )

    def trainable(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """See ``SegmentPolicy``."""
        fixed = (INPUT_SCALE, *normaliser.NAMES)
        return {name: value for name, value in params.items() if name not in fixed}

    def action_outputs(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> Any:
        """See ``SegmentPolicy``."""
        return self._action_outputs(params, self._scaled_inputs(params, observations, xp), xp)

    def values(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``SegmentPolicy``."""
        return self._network("value", params, self._scaled_inputs(params, observations, xp), xp)[..., 0]

    def outputs_and_values(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> tuple[Any, Any]:
        """See ``SegmentPolicy``."""
        inputs = self._scaled_inputs(params, observations, xp)
        return self._action_outputs(params, inputs, xp), self._network("value", params, inputs, xp)[..., 0]

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PolicyRunner:
        """See ``SegmentPolicy``."""
        return lambda observations: self.action_outputs(params, observations, np)

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        if not self.has_statistics:
            return {}
        inputs_BI = self._inputs(observations, np)
        return normaliser.updated(params, inputs_BI, is_normalised_I=self._inputs.is_continuous_I)

    def _scaled_inputs(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> Any:
        inputs = self._inputs(observations, xp)
        if self.has_statistics:
            return normaliser.normalised(params, inputs, xp)
        return inputs * params[INPUT_SCALE]

    def _action_outputs(self, params: Mapping[str, Any], inputs: Any, xp: ArrayModule) -> Any:
        return with_shared_outputs(self._network("policy", params, inputs, xp), params, xp)

    def _network(self, name: str, params: Mapping[str, Any], inputs: Any, xp: ArrayModule) -> Any:
        hidden = inputs
        *names, (last_weight, last_bias) = self._layers[name]
        for weight, bias in names:
            hidden = hidden @ params[weight] + params[bias]
            hidden = xp.tanh(hidden) if self._activation == "tanh" else xp.clip(hidden, 0.0, None)
        return hidden @ params[last_weight] + params[last_bias]
