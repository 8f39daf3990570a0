"""Layers of a user's own: code that is written once and runs under numpy in actors and under torch in the learner.

Shapes: B observations, I inputs, F features.
"""

from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription
from tidegate.models.array_functions import ArrayModule
from tidegate.models.feature_layers import FeatureRunner
from tidegate.models.layers import HIDDEN_GAIN, orthogonal
from tidegate.models.scaled_inputs import ScaledInputs

# Of the parameters in a policy version, so that they meet no name of the platform's.
PREFIX = "own."
PARAMETERS_MAX = 1024


class LayerCode(Protocol):
    """The code. Every method may raise ``ConfigError``, with what the user's code raised."""

    def shapes(self, num_inputs: int) -> Any:
        """The shape of each parameter by its name."""
        ...

    def features(self, params: Any, inputs: Any, xp: ArrayModule) -> Any:
        """Features (B, F) of inputs (B, I); ``xp`` is the module numpy or torch."""
        ...

    def init_params(self, num_inputs: int, rng: np.random.Generator) -> Any:
        """Fresh parameters; None: matrices are orthogonal and all else is 0."""
        ...


class OwnLayers:
    """``FeatureLayers`` by a user's code. ``inputs``: what it is called with.

    Raises:
        ConfigError: the code gives no shapes, parameters or features.
    """

    def __init__(
        self,
        description: EnvironmentDescription,
        code: LayerCode,
        *,
        written: str,
        input_scale: tuple[float, ...] = (),
        normalise_observations: bool = False,
    ) -> None:
        """``written``: what names the code in the run file."""
        self.inputs = ScaledInputs(description, input_scale=input_scale, normalise=normalise_observations)
        self._code = code
        self.name = written
        self.has_statistics = self.inputs.has_statistics
        self._own = self._shapes_of_code()
        params = self.init_params(np.random.default_rng(0))
        rows = np.zeros((2, self.inputs.num_inputs), np.float32)
        self.num_features = self._features_in(self.of_inputs(params, rows, np))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``FeatureLayers``."""
        return self.inputs.shapes() | {f"{PREFIX}{name}": shape for name, shape in self._own.items()}

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """See ``FeatureLayers``.

        Raises:
            ConfigError: the code gives other parameters than it has shapes of.
        """
        made = self._code.init_params(self.inputs.num_inputs, rng)
        if made is None:
            return self.inputs.init_params() | {
                f"{PREFIX}{name}": _fresh(shape, rng) for name, shape in self._own.items()
            }
        params = {str(name): np.asarray(value, np.float32) for name, value in made.items()}
        found = {name: value.shape for name, value in params.items()}
        if found != self._own:
            raise self._wrong(f"init_params gives {found}, and shapes {self._own}")
        return self.inputs.init_params() | {f"{PREFIX}{name}": params[name] for name in self._own}

    def features(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``FeatureLayers``; under numpy as well."""
        return self.of_inputs(params, self.inputs(params, observations, xp), xp)

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> FeatureRunner:
        """See ``FeatureLayers``."""
        return lambda observations: self.features(params, observations, np)

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        return self.inputs.updated_statistics(params, observations)

    def of_inputs(self, params: Mapping[str, Any], inputs: Any, xp: ArrayModule) -> Any:
        """Features (B, F) of inputs (B, I)."""
        own = {name: params[f"{PREFIX}{name}"] for name in self._own}
        return self._code.features(own, inputs, xp)

    def _shapes_of_code(self) -> dict[str, tuple[int, ...]]:
        found: Any = self._code.shapes(self.inputs.num_inputs)
        given: dict[Any, Any] = {}
        if isinstance(found, Mapping):
            given = dict(cast("Mapping[Any, Any]", found))
        if not 0 < len(given) <= PARAMETERS_MAX:
            raise self._wrong(
                f"shapes returned {str(cast('object', found))[:80]}, and not 1 to {PARAMETERS_MAX} shapes by name"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in given.items():
            try:
                shapes[str(name)] = tuple(int(size) for size in shape)
            except (TypeError, ValueError) as error:
                raise self._wrong(f"the shape of {str(name)[:40]} is {str(shape)[:40]}") from error
            if min(shapes[str(name)], default=1) < 1:
                raise self._wrong(f"the shape of {str(name)[:40]} is {shapes[str(name)]}")
        return shapes

    def _features_in(self, features: Any) -> int:
        shape: tuple[int, ...] = tuple(getattr(features, "shape", ()))
        if len(shape) != 2 or shape[0] != 2 or shape[1] < 1:
            raise self._wrong(f"features of 2 rows have the shape {shape}, and not (2, number of features)")
        if features.dtype != np.float32:
            raise self._wrong(f"its features are {features.dtype}, and not float32 as params and inputs are")
        return shape[1]

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"policy.kind {self.name} is no network", why=why, fix="correct it: docs/own_code.md"
        )


def _fresh(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if len(shape) != 2:
        return np.zeros(shape, np.float32)
    return orthogonal((shape[0], shape[1]), rng, gain=HIDDEN_GAIN)
