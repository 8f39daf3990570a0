"""Features of an observation with images: convolutions, the other parts beside them, and one dense layer over both.

The network is written once over ``models.convolutions``: it is a torch function in the learner and an ONNX graph in
actors, which never load torch.

Shapes: B observations, I inputs of the parts that are no images, F features.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, is_image, observation_leaves, recorded_shape
from tidegate.models import normaliser
from tidegate.models.array_functions import ArrayModule
from tidegate.models.convolutions import (
    FEATURES,
    NETWORKS,
    ImageOperations,
    NetworkName,
    ParameterShapes,
    image_layout,
    init_weight,
)
from tidegate.models.feature_layers import FeatureRunner
from tidegate.models.inputs import FlatInputs

if TYPE_CHECKING:
    from tidegate.models.onnx_graph import OnnxModel

ValueT = TypeVar("ValueT")
# Observations (B, *leaf shape) by name, to the outputs of a network over them.
ImageRunner = Callable[[Mapping[str, Array]], list[NDArray[np.float32]]]


class ImageFeatures:
    """``models.feature_layers.FeatureLayers`` with convolutions, and the part that policies with images share.

    ``network``: of the images. ``features``: units of the layer after them; 0 for the published size.
    ``normalise_observations``: of the parts that are no images, by running mean and variance.

    Raises:
        ConfigError: the environment shows no images.
    """

    def __init__(
        self,
        description: EnvironmentDescription,
        *,
        network: NetworkName = "nature",
        features: int = 0,
        normalise_observations: bool = False,
    ) -> None:
        self.observations = observation_leaves(description.observation_space)
        self.num_features = features or FEATURES[network]
        self.name = f"a cnn ({network}, {self.num_features} features)"
        self.layouts = {
            name: image_layout(leaf) for name, leaf in self.observations.items() if is_image(leaf)
        }
        others = {name: leaf for name, leaf in self.observations.items() if name not in self.layouts}
        if not self.layouts:
            raise ConfigError(
                f"policy.kind is cnn, and {description.env_id} shows no images",
                why=f"an image is uint8 with two to four dimensions; it observes {description.observation_space}",
                fix="set policy.kind to mlp",
            )
        self._network_name: NetworkName = network
        self._inputs = FlatInputs(others) if others else None
        self.has_statistics = normalise_observations and self._inputs is not None
        # By network, as a policy runs one.
        self._model: OnnxModel | None = None

    @property
    def num_numbers(self) -> int:
        """Inputs beside the images."""
        return 0 if self._inputs is None else self._inputs.num_inputs

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``FeatureLayers``."""
        ops = ParameterShapes(num_numbers=self.num_numbers)
        self.network(ops)
        return self.statistics_shapes() | ops.shapes

    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors of running statistics."""
        return normaliser.statistics_shapes(self.num_numbers) if self.has_statistics else {}

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """See ``FeatureLayers``: orthogonal weights, zero biases, and statistics of no observation."""
        return self.init_tensors(self.shapes(), rng)

    def init_tensors(
        self, shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
    ) -> dict[str, Array]:
        """Fresh tensors of these and other layers of a network over images, in the order of ``shapes``."""
        params: dict[str, Array] = {
            name: init_weight(name, shape, rng)
            if name.endswith(".weight")
            else np.zeros(shape, dtype=np.float32)
            for name, shape in shapes.items()
        }
        return params | normaliser.init_statistics(self.num_numbers) if self.has_statistics else params

    def network(self, ops: ImageOperations[ValueT]) -> ValueT:
        """Features (B, F), whatever ``ops`` work on."""
        convolutions = NETWORKS[self._network_name]
        parts: list[ValueT] = [
            ops.flatten(convolutions(ops, ops.pixels(name, layout), f"images.{name}"))
            for name, layout in self.layouts.items()
        ]
        if self._inputs is not None:
            parts.append(ops.numbers())
        joined = ops.side_by_side(parts) if len(parts) > 1 else parts[0]
        return ops.relu(ops.dense(joined, "features", units=self.num_features))

    def numbers(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """The inputs (B, I) of the parts that are no images; None without any."""
        if self._inputs is None:
            return None
        inputs = self._inputs(observations, xp)
        return normaliser.normalised(params, inputs, xp) if self.has_statistics else inputs

    def features(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``FeatureLayers``; ``xp`` is torch."""
        from tidegate.models.torch_images import TorchImages  # torch: actors never load it

        return self.network(TorchImages(params, observations, self.numbers(params, observations, xp)))

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> FeatureRunner:
        """See ``FeatureLayers``.

        Raises:
            NotFoundError: onnxruntime is not installed.
        """
        run = self.session(lambda ops: (self.network(ops),), self.shapes(), params, threads=threads)
        return lambda observations: run(observations)[0]

    def session(
        self,
        network: Callable[[ImageOperations[str]], tuple[str, ...]],
        shapes: Mapping[str, tuple[int, ...]],
        params: Mapping[str, Array],
        *,
        threads: int,
    ) -> ImageRunner:
        """One version of a ``network`` that contains this one, always the same, ready to run.

        Raises:
            NotFoundError: onnxruntime is not installed.
        """
        try:
            from tidegate.models import onnx_graph  # only in a process that runs the policy
        except ImportError as error:
            raise NotFoundError(
                "An actor of a policy with images needs onnx and onnxruntime",
                why=str(error),
                fix="install them: pip install 'tidegate[images]'",
            ) from error
        if self._model is None:
            self._model = onnx_graph.session_model(
                network,
                parameter_shapes=shapes,
                image_shapes={name: recorded_shape(self.observations[name]) for name in self.layouts},
                has_numbers=self._inputs is not None,
            )
        session = onnx_graph.OnnxSession(self._model, params, threads=threads)

        def run(observations: Mapping[str, Array]) -> list[NDArray[np.float32]]:
            images = {name: observations[name] for name in self.layouts}
            return session.run(images, self.numbers(params, observations, np))

        return run

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        if not self.has_statistics or self._inputs is None:
            return {}
        inputs_BI = self._inputs(observations, np)
        return normaliser.updated(params, inputs_BI, is_normalised_I=self._inputs.is_continuous_I)
