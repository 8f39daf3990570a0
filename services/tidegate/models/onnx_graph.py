"""``models.convolutions`` as an ONNX graph, run by onnxruntime in actors, which never load torch.

The graph is written from the network once; weights are no part of it but are given to each session from memory, so that
a new version costs a session (5 ms for a Nature CNN, on the thread that received it) and no serialisation. Weights as
inputs of the graph would halve the rate, because a session lays out constants once for its kernels. On one core it does
7,500 Nature forwards a second in float32, torch 4,500; the process grows by 45 MB instead of 540.

Only a process that runs image policies imports this module.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto

from tidegate.core.records import Array
from tidegate.models.convolutions import PIXEL_SCALE, ImageLayout, ImageOperations
from tidegate.models.onnx_writer import GraphWriter

NUMBERS = "numbers"
# A network over image operations: its outputs, such as those of the policy (B, P) and values (B, 1).
Network = Callable[[ImageOperations[str]], tuple[str, ...]]


class OnnxModel(msgspec.Struct, frozen=True):
    """A serialised graph, the names of its outputs, and of the parameters that a session needs."""

    graph: bytes
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]


class OnnxImages:
    """``ImageOperations`` that write nodes; values are their names in ``writer``'s graph.

    ``parameter``: the value of a parameter, by its name. ``images``: that of each observation of images, as recorded.
    ``numbers``: that of the inputs of all other parts, if there are any.
    """

    def __init__(
        self,
        writer: GraphWriter,
        parameter: Callable[[str], str],
        *,
        images: Mapping[str, str],
        numbers: str | None,
    ) -> None:
        self._writer = writer
        self._parameter = parameter
        self._images = images
        self._numbers = numbers

    def pixels(self, observation: str, layout: ImageLayout) -> str:
        """See ``ImageOperations``."""
        images = self._images[observation]
        if layout.axes != tuple(range(len(layout.axes))):
            images = self._writer.node("Transpose", [images], perm=layout.axes)
        if len(layout.axes) != 4:
            size = np.array([-1, layout.channels, layout.height, layout.width], np.int64)
            images = self._writer.node("Reshape", [images, self._writer.constant(size)])
        images = self._writer.node("Cast", [images], to=TensorProto.FLOAT)
        scale = self._writer.constant(np.array(PIXEL_SCALE, np.float32))
        return self._writer.node("Mul", [images, scale])

    def numbers(self) -> str:
        """See ``ImageOperations``."""
        assert self._numbers is not None, "asked for only where the observation has numbers"
        return self._numbers

    def convolution(
        self, images: str, layer: str, *, channels: int, kernel: int, stride: int = 1, padding: int = 0
    ) -> str:
        """See ``ImageOperations``."""
        return self._writer.node(
            "Conv",
            [images, self._parameter(f"{layer}.weight"), self._parameter(f"{layer}.bias")],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[padding] * 4,
        )

    def max_pool(self, images: str) -> str:
        """See ``ImageOperations``."""
        return self._writer.node("MaxPool", [images], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def relu(self, values: str) -> str:
        """See ``ImageOperations``."""
        return self._writer.node("Relu", [values])

    def add(self, values: str, others: str) -> str:
        """See ``ImageOperations``."""
        return self._writer.node("Add", [values, others])

    def flatten(self, images: str) -> str:
        """See ``ImageOperations``."""
        return self._writer.node("Flatten", [images], axis=1)

    def side_by_side(self, parts: Sequence[str]) -> str:
        """See ``ImageOperations``."""
        return self._writer.node("Concat", list(parts), axis=1)

    def dense(self, inputs: str, layer: str, *, units: int) -> str:
        """See ``ImageOperations``."""
        return self._writer.node(
            "Gemm", [inputs, self._parameter(f"{layer}.weight"), self._parameter(f"{layer}.bias")]
        )

    def head(self, features: str, layer: str, *, units: int) -> str:
        """See ``ImageOperations``."""
        return self.dense(features, layer, units=units)


def session_model(
    network: Network,
    *,
    parameter_shapes: Mapping[str, tuple[int, ...]],
    image_shapes: Mapping[str, tuple[int, ...]],
    has_numbers: bool,
) -> OnnxModel:
    """The graph of a network whose parameters are given to each session.

    ``image_shapes``: of one image of each observation, as recorded.
    """
    writer = GraphWriter()
    images = {name: writer.input(name, np.uint8, shape) for name, shape in image_shapes.items()}
    numbers = writer.input(NUMBERS, np.float32, (None,)) if has_numbers else None
    ops = OnnxImages(
        writer,
        lambda name: writer.parameter_outside(name, parameter_shapes[name]),
        images=images,
        numbers=numbers,
    )
    outputs = network(ops)
    graph = writer.model({name: (name, np.float32, (None,)) for name in outputs})
    return OnnxModel(graph, outputs, writer.parameters_outside)


class OnnxSession:
    """A graph with the parameters of one version, ready to run."""

    def __init__(self, model: OnnxModel, params: Mapping[str, Array], *, threads: int) -> None:
        """``params``: the graph's among others; read while the session lives. ``threads``: of one operator."""
        runtime: Any = onnxruntime  # a compiled module without types
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads that wait for the next operator would take the cores of environments.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Some are read where they lie, so they stay alive beside the session.
        self._values = [
            runtime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(params[name]))
            for name in model.parameters
        ]
        options.add_external_initializers(list(model.parameters), self._values)
        self._session = runtime.InferenceSession(model.graph, options, providers=["CPUExecutionProvider"])
        self._outputs = list(model.outputs)

    def run(self, images: Mapping[str, Array], numbers: Array | None) -> list[NDArray[np.float32]]:
        """The outputs (B, U) for images (B, *leaf shape) by observation, and for ``numbers`` (B, I) if it has any."""
        inputs = dict(images) if numbers is None else {**images, NUMBERS: numbers}
        return self._session.run(self._outputs, inputs)
