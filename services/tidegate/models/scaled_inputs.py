"""Observations as network inputs near ±1: by fixed factors, or by running statistics.

Shapes: I inputs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, observation_leaves
from tidegate.models import normaliser
from tidegate.models.array_functions import ArrayModule
from tidegate.models.inputs import FlatInputs

INPUT_SCALE = "input_scale"
# Tensors of the policy version that are not trained.
FIXED = (INPUT_SCALE, *normaliser.NAMES)


class ScaledInputs:
    """Inputs of one environment.

    ``input_scale``: factor of each input; empty scales none. ``normalise``: by running mean and variance instead.

    Raises:
        ConfigError: both are given, or ``input_scale`` has another length than the inputs.
    """

    def __init__(
        self, description: EnvironmentDescription, *, input_scale: tuple[float, ...], normalise: bool
    ) -> None:
        self._flat = FlatInputs(observation_leaves(description.observation_space))
        self.num_inputs = self._flat.num_inputs
        self.has_statistics = normalise
        self._factors = input_scale or (1.0,) * self.num_inputs
        if input_scale and normalise:
            raise ConfigError(
                "policy.input_scale and policy.normalise_observations are both set",
                why="a normalised input is near ±1 without a factor",
                fix="remove one of them",
            )
        if len(self._factors) != self.num_inputs:
            raise ConfigError(
                f"policy.input_scale has {len(input_scale)} factors for {self.num_inputs} inputs",
                why=f"{description.env_id} observes {description.observation_space}",
                fix="give one factor per input, or none",
            )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its tensors by name."""
        if self.has_statistics:
            return normaliser.statistics_shapes(self.num_inputs)
        return {INPUT_SCALE: (self.num_inputs,)}

    def init_params(self) -> dict[str, Array]:
        """Its tensors in a fresh policy."""
        if self.has_statistics:
            return normaliser.init_statistics(self.num_inputs)
        return {INPUT_SCALE: np.array(self._factors, np.float32)}

    def __call__(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """Inputs (..., I) of observations (..., *leaf shape)."""
        inputs = self._flat(observations, xp)
        if self.has_statistics:
            return normaliser.normalised(params, inputs, xp)
        return inputs * params[INPUT_SCALE]

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        if not self.has_statistics:
            return {}
        inputs_BI = self._flat(observations, np)
        return normaliser.updated(params, inputs_BI, is_normalised_I=self._flat.is_continuous_I)
