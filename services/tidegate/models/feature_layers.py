"""What a recurrent cell reads: features of an observation, by dense layers or by convolutions.

Shapes: B observations, F features.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np

from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription
from tidegate.models.activations import Activation
from tidegate.models.array_functions import ArrayModule
from tidegate.models.dense_layers import check_hidden, dense_layers
from tidegate.models.layers import HIDDEN_GAIN, orthogonal
from tidegate.models.scaled_inputs import ScaledInputs

# Observations (B, *leaf shape) by name, to features (B, F) of one version.
FeatureRunner: TypeAlias = Callable[[Mapping[str, Array]], Array]


class FeatureLayers(Protocol):
    """The layers below a cell. ``name`` says what they are, in errors; ``num_features`` is F."""

    @property
    def name(self) -> str:
        """Such as ``an mlp of (64,)``."""
        ...

    @property
    def num_features(self) -> int:
        """F."""
        ...

    @property
    def has_statistics(self) -> bool:
        """Whether parameters contain running statistics of observations."""
        ...

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's shape by name."""
        ...

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters."""
        ...

    def features(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """Features (B, F), as the learner computes them: ``xp`` is torch."""
        ...

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> FeatureRunner:
        """As an actor computes them, of one version; see ``SegmentPolicy.runner``."""
        ...

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        ...


class DenseFeatures:
    """``FeatureLayers`` with ``hidden`` dense layers over flat observations; ``input_scale`` as for ``MlpPolicy``.

    Raises:
        ConfigError: a setting does not fit the environment.
    """

    def __init__(
        self,
        description: EnvironmentDescription,
        *,
        hidden: tuple[int, ...] = (64,),
        activation: Activation = "tanh",
        input_scale: tuple[float, ...] = (),
        normalise_observations: bool = False,
    ) -> None:
        self._inputs = ScaledInputs(description, input_scale=input_scale, normalise=normalise_observations)
        self._sizes = (self._inputs.num_inputs, *hidden)
        self._activation: Activation = activation
        self.name = f"an mlp of {hidden}"
        self.num_features = self._sizes[-1]
        self.has_statistics = self._inputs.has_statistics
        check_hidden(hidden)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``FeatureLayers``; weights are (inputs, outputs)."""
        shapes = self._inputs.shapes()
        for layer, (before, after) in enumerate(pairwise(self._sizes)):
            shapes[f"trunk.{layer}.weight"] = (before, after)
            shapes[f"trunk.{layer}.bias"] = (after,)
        return shapes

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """See ``FeatureLayers``: orthogonal weights, zero biases."""
        params = self._inputs.init_params()
        for layer, (before, after) in enumerate(pairwise(self._sizes)):
            params[f"trunk.{layer}.weight"] = orthogonal((before, after), rng, gain=HIDDEN_GAIN)
            params[f"trunk.{layer}.bias"] = np.zeros(after, np.float32)
        return params

    def features(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``FeatureLayers``; under numpy as well."""
        layers = [
            (params[f"trunk.{layer}.weight"], params[f"trunk.{layer}.bias"])
            for layer in range(len(self._sizes) - 1)
        ]
        inputs = self._inputs(params, observations, xp)
        return dense_layers(inputs, layers, self._activation, xp, activates_last=True)

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> FeatureRunner:
        """See ``FeatureLayers``."""
        return lambda observations: self.features(params, observations, np)

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        return self._inputs.updated_statistics(params, observations)
