"""Convolutions over the images of an observation: a policy and, but for some algorithms, a value on shared features.

The network is written once over ``models.convolutions``: it is a torch function in the learner and an ONNX graph in
actors, which never load torch.

Shapes: B observations, I inputs of the parts that are no images, P outputs of the action distribution.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, recorded_shape
from tidegate.models import normaliser
from tidegate.models.array_functions import ArrayModule
from tidegate.models.convolutions import (
    POLICY_HEAD,
    VALUE_HEAD,
    ImageOperations,
    ParameterShapes,
)
from tidegate.models.distributions import ActionDistribution
from tidegate.models.image_features import ImageFeatures, ImageRunner
from tidegate.models.layers import SHARED_OUTPUTS, check_tensors, with_shared_outputs
from tidegate.models.policy_port import PairRunner, PolicyRunner
from tidegate.models.traced_arrays import BATCH, TracedArray

TensorT = TypeVar("TensorT")
ValueT = TypeVar("ValueT")


class CnnPolicy:
    """``models.policy_port.SegmentPolicy`` with the layers ``images`` and heads on them.

    ``has_value``: whether one is of the value; without it the methods that compute values are not for use.

    Raises:
        ConfigError: the images are too small for the network.
    """

    memory_size = 0

    def __init__(
        self,
        description: EnvironmentDescription,
        actions: ActionDistribution,
        *,
        images: ImageFeatures,
        has_value: bool = True,
    ) -> None:
        self.description = description
        self._has_value = has_value
        self.actions = actions
        self._images = images
        self.observations = self._images.observations
        self.has_statistics = self._images.has_statistics
        self._shapes = self._all_shapes()

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SegmentPolicy``."""
        return dict(self._shapes)

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh parameters: orthogonal weights, biases and shared outputs zero, and statistics of no observation."""
        return self._images.init_tensors(self._shapes, rng)

    def check_params(self, params: Mapping[str, Array]) -> None:
        """See ``SegmentPolicy``."""
        policy = f"{self._images.name} for {self.description.env_id}"
        check_tensors(self._shapes, params, policy=policy)

    def trainable(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """See ``SegmentPolicy``."""
        return {name: value for name, value in params.items() if name not in normaliser.NAMES}

    def action_outputs(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> Any:
        """See ``SegmentPolicy``."""
        return self._computed(params, observations, xp)[0]

    def values(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``SegmentPolicy``."""
        return self.outputs_and_values(params, observations, xp)[1]

    def outputs_and_values(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> tuple[Any, Any]:
        """See ``SegmentPolicy``. Under numpy each call makes a session; an actor uses ``runner``."""
        outputs, values = self._computed(params, observations, xp)
        return outputs, values[..., 0]

    def _computed(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> list[Any]:
        """Of each head, (..., P) and (..., 1)."""
        rows = {
            name: observations[name].reshape(-1, *recorded_shape(leaf))
            for name, leaf in self.observations.items()
        }
        name, leaf = next(iter(self.observations.items()))
        leading = tuple(observations[name].shape)[: observations[name].ndim - len(recorded_shape(leaf))]
        if isinstance(observations[name], TracedArray):
            outputs, *values = self._traced(params, rows)
        elif xp is np:
            outputs, *values = self._session(params, threads=1)(rows)
        else:
            from tidegate.models.torch_images import TorchImages  # torch: actors never load it

            numbers = self._images.numbers(params, rows, xp)
            outputs, *values = self.network(TorchImages(params, rows, numbers))
        heads = [with_shared_outputs(outputs, params, xp), *values]
        return [head.reshape(*leading, head.shape[-1]) for head in heads]

    @property
    def num_features(self) -> int:
        """See ``FeaturePolicy``."""
        return self._images.num_features

    def features(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """See ``FeaturePolicy``."""
        return self._images.features(params, observations, xp)

    def outputs_of(self, params: Mapping[str, Any], features: Any, xp: ArrayModule) -> Any:
        """See ``FeaturePolicy``."""
        from tidegate.models.torch_images import TorchImages  # torch: actors never load it

        outputs = self._policy_head(TorchImages(params, {}, None), features)
        return with_shared_outputs(outputs, params, xp)

    def feature_parameters(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """See ``FeaturePolicy``."""
        return {
            name: value for name, value in self.trainable(params).items() if name in self._images.shapes()
        }

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PolicyRunner:
        """See ``SegmentPolicy``.

        Raises:
            NotFoundError: onnxruntime is not installed.
        """
        session = self._session(params, threads=threads)
        return lambda observations: with_shared_outputs(session(observations)[0], params, np)

    def pair_runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PairRunner:
        """As ``runner``, of outputs and values.

        Raises:
            NotFoundError: onnxruntime is not installed.
        """
        session = self._session(params, threads=threads)

        def run(observations: Mapping[str, Array]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            outputs, values_B1 = session(observations)
            return with_shared_outputs(outputs, params, np), values_B1[:, 0]

        return run

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        return self._images.updated_statistics(params, observations)

    def network(self, ops: ImageOperations[ValueT]) -> tuple[ValueT, ...]:
        """Outputs without the shared ones (B, P) and values (B, 1), if any, whatever ``ops`` work on."""
        features = self._images.network(ops)
        outputs = self._policy_head(ops, features)
        return (outputs, ops.head(features, VALUE_HEAD, units=1)) if self._has_value else (outputs,)

    def _policy_head(self, ops: ImageOperations[ValueT], features: ValueT) -> ValueT:
        num_outputs = self.actions.num_outputs - self.actions.num_shared_outputs
        return ops.head(features, POLICY_HEAD, units=num_outputs)

    def _all_shapes(self) -> dict[str, tuple[int, ...]]:
        ops = ParameterShapes(num_numbers=self._images.num_numbers)
        self.network(ops)
        num_shared = self.actions.num_shared_outputs
        shared = {SHARED_OUTPUTS: (num_shared,)} if num_shared else {}
        return self._images.statistics_shapes() | ops.shapes | shared

    def _session(self, params: Mapping[str, Array], *, threads: int) -> ImageRunner:
        return self._images.session(self.network, self._shapes, params, threads=threads)

    def _traced(self, params: Mapping[str, Any], rows: Mapping[str, Any]) -> list[TracedArray]:
        """The network as a part of the graph that ``rows`` belong to."""
        from tidegate.models.onnx_graph import OnnxImages  # only in a process that exports the policy

        layouts = self._images.layouts
        writer = rows[next(iter(layouts))].writer
        numbers = self._images.numbers(params, rows, np)
        ops = OnnxImages(
            writer,
            lambda name: params[name].value,
            images={name: rows[name].value for name in layouts},
            numbers=None if numbers is None else numbers.value,
        )
        sizes = (self.actions.num_outputs - self.actions.num_shared_outputs, 1)
        return [
            TracedArray(writer, head, dtype=np.float32, shape=(BATCH, size))
            for head, size in zip(
                self.network(ops), sizes, strict=False
            )  # a policy without a value has one head
        ]
