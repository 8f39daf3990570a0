"""Arrays whose numbers are not known yet: numpy's functions called on them write an ONNX graph.

Policies and distributions are written once for numpy and torch. Called under numpy on traced arrays, the same code
writes itself down, so that an exported policy is the one that actors run. Types follow numpy's rules of promotion: an
operand is cast wherever numpy would convert it.

The first dimension of a traced array is the batch; its size is ``BATCH`` in ``shape``, which ONNX's Reshape reads as
"that of the input". Parameters have no batch, and none of their sizes is 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import DTypeLike

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array

if TYPE_CHECKING:
    from tidegate.models.onnx_writer import GraphWriter

BATCH = 0
OPERATORS: dict[Any, str] = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.true_divide: "Div",
    np.negative: "Neg",
    np.matmul: "MatMul",
    np.maximum: "Max",
    np.minimum: "Min",
    np.equal: "Equal",
    np.exp: "Exp",
    np.log: "Log",
    np.sqrt: "Sqrt",
    np.tanh: "Tanh",
}


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """One value of ``writer``'s graph, by its name there. Supports what policies use of numpy, and refuses the rest."""

    def __init__(self, writer: "GraphWriter", value: str, *, dtype: DTypeLike, shape: Sequence[int]) -> None:
        self.writer = writer
        self.value = value
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.shape = tuple(shape)

    @property
    def ndim(self) -> int:
        """Dimensions, the batch included."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> "TracedArray":
        if method != "__call__" or options or ufunc not in OPERATORS:
            raise _unsupported(f"numpy.{ufunc.__name__}")
        *dtypes, dtype = ufunc.resolve_dtypes((*map(_type_of, inputs), None))
        operands = [self._operand(each).astype(own) for each, own in zip(inputs, dtypes, strict=True)]
        shapes = [each.shape for each in operands]
        shape = (*shapes[0][:-1], shapes[1][-1]) if ufunc is np.matmul else np.broadcast_shapes(*shapes)
        return self._node(OPERATORS[ufunc], [each.value for each in operands], dtype=dtype, shape=shape)

    def __array_function__(
        self, function: Any, types: object, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> "TracedArray":
        if function not in _FUNCTIONS:
            raise _unsupported(f"numpy.{function.__name__}")
        return _FUNCTIONS[function](self, *arguments, **options)

    def __getitem__(self, key: Any) -> "TracedArray":
        """A choice along the last axis: a number, an array of positions, or a slice."""
        keys: tuple[Any, ...] = cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (key,)
        *others, last = keys
        reaches_last = len(keys) == self.ndim or any(each is Ellipsis for each in others)
        if not reaches_last or not all(each is Ellipsis or each == slice(None) for each in others):
            raise _unsupported(f"indexing by {key}")
        if isinstance(last, slice):
            start, stop, step = last.indices(self.shape[-1])
            if step != 1:
                raise _unsupported(f"indexing by {key}")
            bounds = [self._constant(np.array([each], np.int64)).value for each in (start, stop, -1)]
            return self._node("Slice", [self.value, *bounds], shape=(*self.shape[:-1], stop - start))
        positions = np.asarray(last, np.int64)
        shape = (*self.shape[:-1], *positions.shape)
        return self._node("Gather", [self.value, self._constant(positions).value], shape=shape, axis=-1)

    def astype(self, dtype: DTypeLike, copy: bool | None = None) -> "TracedArray":
        """The same numbers as another type."""
        del copy
        if np.dtype(dtype) == self.dtype:
            return self
        return TracedArray(self.writer, self.writer.cast(self.value, dtype), dtype=dtype, shape=self.shape)

    def reshape(self, *shape: Any) -> "TracedArray":
        """Another shape; the batch stays the first dimension."""
        first, *rest = cast("tuple[int, ...]", shape[0] if isinstance(shape[0], tuple) else shape)
        size = math.prod(self.shape[1:])
        known = math.prod(each for each in rest if each != -1)
        rest = [size // known if each == -1 else each for each in rest]
        if self.shape[0] != BATCH or first not in (BATCH, -1) or math.prod(rest) != size:
            raise _unsupported(f"reshaping {self.shape} to {shape}")
        wanted = (BATCH, *rest)
        if wanted == self.shape:
            return self
        return self._node(
            "Reshape", [self.value, self._constant(np.array(wanted, np.int64)).value], shape=wanted
        )

    def argmax(self, axis: int) -> "TracedArray":
        """The position of the largest number, the first one of equal ones."""
        if axis not in (-1, self.ndim - 1):
            raise _unsupported(f"argmax along axis {axis}")
        return self._node("ArgMax", [self.value], dtype=np.int64, shape=self.shape[:-1], axis=-1, keepdims=0)

    def _operand(self, value: Any) -> "TracedArray":
        return value if isinstance(value, TracedArray) else self._constant(np.asarray(value))

    def _constant(self, value: Array) -> "TracedArray":
        return TracedArray(self.writer, self.writer.constant(value), dtype=value.dtype, shape=value.shape)

    def _node(
        self,
        operator: str,
        inputs: Sequence[str],
        *,
        shape: Sequence[int],
        dtype: DTypeLike | None = None,
        **attributes: Any,
    ) -> "TracedArray":
        value = self.writer.node(operator, inputs, **attributes)
        return TracedArray(self.writer, value, dtype=self.dtype if dtype is None else dtype, shape=shape)

    # -- numpy's functions, called by ``__array_function__`` -----------------------------------------------------------

    def clip(self, values: Any, low: Any, high: Any) -> "TracedArray":
        """``numpy.clip``."""
        raised = values if low is None else np.maximum(values, low)
        return self._operand(raised if high is None else np.minimum(raised, high))

    def concatenate(self, parts: Sequence[Any], axis: int) -> "TracedArray":
        """``numpy.concatenate`` along the last axis."""
        operands = [self._operand(each) for each in parts]
        if axis not in (-1, operands[0].ndim - 1):
            raise _unsupported(f"concatenate along axis {axis}")
        dtype = np.result_type(*(each.dtype for each in operands))
        width = sum(each.shape[-1] for each in operands)
        values = [each.astype(dtype).value for each in operands]
        return self._node("Concat", values, dtype=dtype, shape=(*operands[0].shape[:-1], width), axis=-1)

    def mean(self, values: Any, axis: int, keepdims: bool) -> "TracedArray":
        """``numpy.mean`` along the last axis, which keeps a size of 1."""
        operand = self._operand(values)
        if axis not in (-1, operand.ndim - 1) or not keepdims:
            raise _unsupported(f"mean along axis {axis}")
        shape = (*operand.shape[:-1], 1)
        return self._node("ReduceMean", [operand.value], shape=shape, axes=[-1], keepdims=1)

    def where(self, condition: Any, values: Any, others: Any) -> "TracedArray":
        """``numpy.where``."""
        # A Python number adapts to the other operand's type.
        dtype = np.result_type(
            *(each if isinstance(each, int | float) else each.dtype for each in (values, others))
        )
        operands = [
            self._operand(condition),
            *(self._operand(each).astype(dtype) for each in (values, others)),
        ]
        shape = np.broadcast_shapes(*(each.shape for each in operands))
        return self._node("Where", [each.value for each in operands], dtype=dtype, shape=shape)

    def broadcast_to(self, values: Any, shape: tuple[int, ...]) -> "TracedArray":
        """``numpy.broadcast_to`` of a shape that begins with the batch."""
        if shape[0] != BATCH:
            raise _unsupported(f"broadcasting to {shape}")
        rest = self._constant(np.array(shape[1:], np.int64)).value
        size = self.writer.node("Concat", [self.writer.batch_size(), rest], axis=0)
        return self._node("Expand", [self._operand(values).value, size], shape=shape)


_FUNCTIONS: dict[Any, Callable[..., TracedArray]] = {
    np.clip: TracedArray.clip,
    np.concatenate: TracedArray.concatenate,
    np.mean: TracedArray.mean,
    np.where: TracedArray.where,
    np.broadcast_to: TracedArray.broadcast_to,
}


def traced_parameters(writer: "GraphWriter", params: Mapping[str, Array]) -> dict[str, TracedArray]:
    """Parameters as constants of the graph, under their own names."""
    return {
        name: TracedArray(writer, writer.constant(value, name), dtype=value.dtype, shape=value.shape)
        for name, value in params.items()
    }


def _type_of(value: Any) -> Any:
    """What numpy promotes: a type, or a Python number's, which adapts to the other operand's."""
    return type(value) if isinstance(value, int | float) else value.dtype


def _unsupported(what: str) -> ConfigError:
    return ConfigError(
        "The policy cannot be written as an ONNX graph",
        why=f"it uses {what}, which models/traced_arrays.py does not have",
        fix="export safetensors, or add it there",
    )
