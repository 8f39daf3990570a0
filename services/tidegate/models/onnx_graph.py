"""``models.convolutions`` as an ONNX graph, run by onnxruntime in actors, which never load torch.

The graph is written from the network once; weights are no part of it but are given to each session from memory, so that
a new version costs a session (5 ms for a Nature CNN, on the thread that received it) and no serialisation. Weights as
inputs of the graph would halve the rate, because a session lays out constants once for its kernels. On one core it does
7,500 Nature forwards a second in float32, torch 4,500; the process grows by 45 MB instead of 540.

Only a process that runs image policies imports this module.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tidegate.core.records import Array
from tidegate.models.convolutions import PIXEL_SCALE, ImageLayout

NUMBERS = "numbers"
# The oldest versions that have all operators below, for any later onnxruntime.
OPSET_VERSION = 17
IR_VERSION = 8
BATCH = "B"


class OnnxModel(msgspec.Struct, frozen=True):
    """A serialised graph, the names of its outputs, and of the parameters that a session needs."""

    graph: bytes
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]


class OnnxImages:
    """``ImageOperations`` that write nodes; values are their names. ``shapes``: of the parameters."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], *, image_shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        """``image_shapes``: of one image of each observation, as recorded."""
        self._shapes = shapes
        self._image_shapes = image_shapes
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: dict[str, onnx.ValueInfoProto] = {}
        self._constants: dict[str, onnx.TensorProto] = {}
        self._numbering = itertools.count()

    def pixels(self, observation: str, layout: ImageLayout) -> str:
        """See ``ImageOperations``."""
        shape = [BATCH, *self._image_shapes[observation]]
        self._inputs[observation] = helper.make_tensor_value_info(observation, TensorProto.UINT8, shape)
        images = observation
        if layout.axes != tuple(range(len(layout.axes))):
            images = self._node("Transpose", [images], perm=layout.axes)
        if len(shape) != 4:
            size = np.array([-1, layout.channels, layout.height, layout.width], np.int64)
            images = self._node("Reshape", [images, self._constant(f"{observation}/size", size)])
        images = self._node("Cast", [images], to=TensorProto.FLOAT)
        return self._node("Mul", [images, self._constant("pixel_scale", np.array(PIXEL_SCALE, np.float32))])

    def numbers(self) -> str:
        """See ``ImageOperations``."""
        self._inputs[NUMBERS] = helper.make_tensor_value_info(NUMBERS, TensorProto.FLOAT, [BATCH, None])
        return NUMBERS

    def convolution(
        self, images: str, layer: str, *, channels: int, kernel: int, stride: int = 1, padding: int = 0
    ) -> str:
        """See ``ImageOperations``."""
        return self._node(
            "Conv",
            [images, self._parameter(f"{layer}.weight"), self._parameter(f"{layer}.bias")],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[padding] * 4,
        )

    def max_pool(self, images: str) -> str:
        """See ``ImageOperations``."""
        return self._node("MaxPool", [images], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def relu(self, values: str) -> str:
        """See ``ImageOperations``."""
        return self._node("Relu", [values])

    def add(self, values: str, others: str) -> str:
        """See ``ImageOperations``."""
        return self._node("Add", [values, others])

    def flatten(self, images: str) -> str:
        """See ``ImageOperations``."""
        return self._node("Flatten", [images], axis=1)

    def side_by_side(self, parts: Sequence[str]) -> str:
        """See ``ImageOperations``."""
        return self._node("Concat", list(parts), axis=1)

    def dense(self, inputs: str, layer: str, *, units: int) -> str:
        """See ``ImageOperations``."""
        return self._node(
            "Gemm", [inputs, self._parameter(f"{layer}.weight"), self._parameter(f"{layer}.bias")]
        )

    def head(self, features: str, layer: str, *, units: int) -> str:
        """See ``ImageOperations``."""
        return self.dense(features, layer, units=units)

    def model(self, outputs: Sequence[str]) -> "OnnxModel":
        """The graph with these outputs (B, U), whose parameters are given to each session."""
        graph = helper.make_graph(
            self._nodes,
            "policy",
            list(self._inputs.values()),
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, None]) for name in outputs],
            list(self._constants.values()),
        )
        opset = helper.make_opsetid("", OPSET_VERSION)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
        parameters = [name for name in self._constants if name in self._shapes]
        return OnnxModel(model.SerializeToString(), tuple(outputs), tuple(parameters))

    def _node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        output = f"value{next(self._numbering)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def _constant(self, name: str, value: Array) -> str:
        self._constants[name] = onnx.numpy_helper.from_array(value, name)
        return name

    def _parameter(self, name: str) -> str:
        """A tensor whose data is outside of the graph; the location is never opened."""
        tensor = onnx.TensorProto(
            name=name,
            data_type=TensorProto.FLOAT,
            dims=self._shapes[name],
            data_location=TensorProto.EXTERNAL,
            external_data=[onnx.StringStringEntryProto(key="location", value="given_to_each_session")],
        )
        self._constants[name] = tensor
        return name


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
