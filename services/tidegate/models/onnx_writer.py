"""An ONNX graph while it is written: inputs, constants and nodes, by the names of their values.

Only a process that runs image policies or exports a policy imports this module.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import TensorProto, helper

from tidegate.core.records import Array

# The oldest versions that have all operators that are written here, for any later onnxruntime.
OPSET_VERSION = 17
IR_VERSION = 8
BATCH = "B"


class GraphWriter:
    """Writes one graph; the first dimension of every input and output is the batch."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: dict[str, onnx.ValueInfoProto] = {}
        self._constants: dict[str, onnx.TensorProto] = {}
        self._outside: list[str] = []
        self._numbering = itertools.count()
        self._batch = ""

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[int | None]) -> str:
        """An input (B, *shape); a dimension of None may have any size."""
        self._inputs[name] = helper.make_tensor_value_info(name, _element_type(dtype), [BATCH, *shape])
        return name

    def constant(self, value: Array, name: str = "") -> str:
        """A constant; without a ``name`` it gets one."""
        name = name or f"constant{next(self._numbering)}"
        self._constants[name] = onnx.numpy_helper.from_array(
            np.ascontiguousarray(value).reshape(value.shape), name
        )
        return name

    def parameter_outside(self, name: str, shape: Sequence[int]) -> str:
        """A float32 tensor whose data a session is given from memory; the location is never opened."""
        self._constants[name] = onnx.TensorProto(
            name=name,
            data_type=TensorProto.FLOAT,
            dims=shape,
            data_location=TensorProto.EXTERNAL,
            external_data=[onnx.StringStringEntryProto(key="location", value="given_to_each_session")],
        )
        self._outside.append(name)
        return name

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """One operation with one result."""
        output = f"value{next(self._numbering)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def cast(self, value: str, dtype: DTypeLike) -> str:
        """A value as another type."""
        return self.node("Cast", [value], to=_element_type(dtype))

    def batch_size(self) -> str:
        """The number of rows, as an int64 vector of one element."""
        if not self._batch:
            self._batch = self.node("Shape", [next(iter(self._inputs))], start=0, end=1)
        return self._batch

    @property
    def parameters_outside(self) -> tuple[str, ...]:
        """The names of the parameters that each session is given."""
        return tuple(self._outside)

    def model(
        self,
        outputs: Mapping[str, tuple[str, DTypeLike, Sequence[int | None]]],
        metadata: Mapping[str, str] | None = None,
    ) -> bytes:
        """The serialised model. ``outputs``: value, type and shape without the batch, by the name of the output.

        Nodes and constants that no output needs are left out.
        """
        named = [
            helper.make_node("Identity", [value], [name])
            for name, (value, _, _) in outputs.items()
            if value != name
        ]
        nodes, needed = _needed([*self._nodes, *named], outputs)
        graph = helper.make_graph(
            nodes,
            "policy",
            [info for name, info in self._inputs.items() if name in needed],
            [
                helper.make_tensor_value_info(name, _element_type(dtype), [BATCH, *shape])
                for name, (_, dtype, shape) in outputs.items()
            ],
            [tensor for name, tensor in self._constants.items() if name in needed],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET_VERSION)],
            ir_version=IR_VERSION,
            producer_name="tidegate",
        )
        helper.set_model_props(model, dict(metadata or {}))
        return model.SerializeToString()


def _needed(
    nodes: Sequence[onnx.NodeProto], outputs: Mapping[str, Any]
) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that the outputs depend on, in order, and the names of all values on the way."""
    needed = set(outputs)
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    return kept[::-1], needed


def _element_type(dtype: DTypeLike) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
