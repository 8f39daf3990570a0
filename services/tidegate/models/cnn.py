"""Convolutions over the images of an observation: a policy and a value with shared features.

The network is written once over ``models.convolutions``: it is a torch function in the learner and an ONNX graph in
actors, which never load torch. Parts of the observation that are no images are joined after the convolutions.

Shapes: B observations, I inputs of those other parts, P outputs of the action distribution.
"""

from collections.abc import Mapping
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
    POLICY_HEAD,
    VALUE_HEAD,
    ImageOperations,
    NetworkName,
    ParameterShapes,
    image_layout,
    init_weight,
)
from tidegate.models.distributions import ActionDistribution
from tidegate.models.inputs import FlatInputs
from tidegate.models.layers import SHARED_OUTPUTS, check_tensors, with_shared_outputs
from tidegate.models.policy_port import PairRunner, PolicyRunner
from tidegate.models.traced_arrays import BATCH, TracedArray

if TYPE_CHECKING:
    from tidegate.models.onnx_graph import OnnxModel, OnnxSession

TensorT = TypeVar("TensorT")
ValueT = TypeVar("ValueT")


class CnnPolicy:
    """``models.policy_port.SegmentPolicy`` with convolutions.

    ``network``: of the images. ``features``: units of the layer after them; 0 for the published size.
    ``normalise_observations``: of the parts that are no images, by running mean and variance.

    Raises:
        ConfigError: the environment shows no images, or they are too small for the network.
    """

    memory_size = 0

    def __init__(
        self,
        description: EnvironmentDescription,
        actions: ActionDistribution,
        *,
        network: NetworkName = "nature",
        features: int = 0,
        normalise_observations: bool = False,
    ) -> None:
        self.description = description
        self.observations = observation_leaves(description.observation_space)
        self.actions = actions
        self._network_name: NetworkName = network
        self._features = features or FEATURES[network]
        self._layouts = {
            name: image_layout(leaf) for name, leaf in self.observations.items() if is_image(leaf)
        }
        others = {name: leaf for name, leaf in self.observations.items() if name not in self._layouts}
        if not self._layouts:
            raise ConfigError(
                f"policy.kind is cnn, and {description.env_id} shows no images",
                why=f"an image is uint8 with two to four dimensions; it observes {description.observation_space}",
                fix="set policy.kind to mlp",
            )
        self._inputs = FlatInputs(others) if others else None
        self.has_statistics = normalise_observations and self._inputs is not None
        self._shapes = self._all_shapes()
        self._model: OnnxModel | None = None

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SegmentPolicy``."""
        return dict(self._shapes)

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters: orthogonal weights, biases and shared outputs zero, and statistics of no observation."""
        params: dict[str, Array] = {}
        for name, shape in self._shapes.items():
            if name.endswith(".weight"):
                params[name] = init_weight(name, shape, rng)
            else:
                params[name] = np.zeros(shape, dtype=np.float32)
        if self.has_statistics and self._inputs is not None:
            params |= normaliser.init_statistics(self._inputs.num_inputs)
        return params

    def check_params(self, params: Mapping[str, Array]) -> None:
        """See ``SegmentPolicy``."""
        policy = f"a cnn ({self._network_name}, {self._features} features) for {self.description.env_id}"
        check_tensors(self._shapes, params, policy=policy)

    def trainable(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """See ``SegmentPolicy``."""
        return {name: value for name, value in params.items() if name not in normaliser.NAMES}

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
        """See ``SegmentPolicy``. Under numpy each call makes a session; an actor uses ``runner``."""
        rows = {
            name: observations[name].reshape(-1, *recorded_shape(leaf))
            for name, leaf in self.observations.items()
        }
        name, leaf = next(iter(self.observations.items()))
        leading = tuple(observations[name].shape)[: observations[name].ndim - len(recorded_shape(leaf))]
        numbers = self._numbers(params, rows, xp)
        if isinstance(observations[name], TracedArray):
            outputs, values = self._traced(params, rows, numbers)
        elif xp is np:
            outputs, values = self._run(self._session(params, threads=1), rows, numbers)
        else:
            from tidegate.models.torch_images import TorchImages  # torch: actors never load it

            outputs, values = self.network(TorchImages(params, rows, numbers))
        outputs = with_shared_outputs(outputs, params, xp)
        return outputs.reshape(*leading, outputs.shape[-1]), values.reshape(leading)

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PolicyRunner:
        """See ``SegmentPolicy``.

        Raises:
            NotFoundError: onnxruntime is not installed.
        """
        run = self.pair_runner(params, threads=threads)
        return lambda observations: run(observations)[0]

    def pair_runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PairRunner:
        """As ``runner``, of outputs and values.

        Raises:
            NotFoundError: onnxruntime is not installed.
        """
        session = self._session(params, threads=threads)

        def run(observations: Mapping[str, Array]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            outputs, values_B1 = self._run(session, observations, self._numbers(params, observations, np))
            return with_shared_outputs(outputs, params, np), values_B1[:, 0]

        return run

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        if not self.has_statistics or self._inputs is None:
            return {}
        inputs_BI = self._inputs(observations, np)
        return normaliser.updated(params, inputs_BI, is_normalised_I=self._inputs.is_continuous_I)

    def _all_shapes(self) -> dict[str, tuple[int, ...]]:
        num_inputs = 0 if self._inputs is None else self._inputs.num_inputs
        ops = ParameterShapes(num_numbers=num_inputs)
        self.network(ops)
        num_shared = self.actions.num_shared_outputs
        shared = {SHARED_OUTPUTS: (num_shared,)} if num_shared else {}
        statistics = normaliser.statistics_shapes(num_inputs) if self.has_statistics else {}
        return statistics | ops.shapes | shared

    def network(self, ops: ImageOperations[ValueT]) -> tuple[ValueT, ValueT]:
        """Outputs without the shared ones (B, P) and values (B, 1), whatever ``ops`` work on."""
        convolutions = NETWORKS[self._network_name]
        parts: list[ValueT] = [
            ops.flatten(convolutions(ops, ops.pixels(name, layout), f"images.{name}"))
            for name, layout in self._layouts.items()
        ]
        if self._inputs is not None:
            parts.append(ops.numbers())
        joined = ops.side_by_side(parts) if len(parts) > 1 else parts[0]
        features = ops.relu(ops.dense(joined, "features", units=self._features))
        num_outputs = self.actions.num_outputs - self.actions.num_shared_outputs
        return ops.head(features, POLICY_HEAD, units=num_outputs), ops.head(features, VALUE_HEAD, units=1)

    def _numbers(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """The inputs (B, I) of the parts that are no images; None without any."""
        if self._inputs is None:
            return None
        inputs = self._inputs(observations, xp)
        return normaliser.normalised(params, inputs, xp) if self.has_statistics else inputs

    def _session(self, params: Mapping[str, Array], *, threads: int) -> "OnnxSession":
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
                self.network,
                parameter_shapes=self._shapes,
                image_shapes={name: recorded_shape(self.observations[name]) for name in self._layouts},
                has_numbers=self._inputs is not None,
            )
        return onnx_graph.OnnxSession(self._model, params, threads=threads)

    def _traced(
        self, params: Mapping[str, Any], rows: Mapping[str, Any], numbers: Any
    ) -> tuple[TracedArray, TracedArray]:
        """The network as a part of the graph that ``rows`` belong to."""
        from tidegate.models.onnx_graph import OnnxImages  # only in a process that exports the policy

        writer = rows[next(iter(self._layouts))].writer
        ops = OnnxImages(
            writer,
            lambda name: params[name].value,
            images={name: rows[name].value for name in self._layouts},
            numbers=None if numbers is None else numbers.value,
        )
        outputs, values = self.network(ops)
        num_outputs = self.actions.num_outputs - self.actions.num_shared_outputs
        return (
            TracedArray(writer, outputs, dtype=np.float32, shape=(BATCH, num_outputs)),
            TracedArray(writer, values, dtype=np.float32, shape=(BATCH, 1)),
        )

    def _run(
        self, session: "OnnxSession", observations: Mapping[str, Array], numbers: Array | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Outputs without the shared ones (B, P) and values (B, 1)."""
        images = {name: observations[name] for name in self._layouts}
        outputs_BP, values_B1 = session.run(images, numbers)
        return outputs_BP, values_B1
