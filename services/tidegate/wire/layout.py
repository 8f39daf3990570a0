"""The layout of tensors in a frame's payload: written, read and checked once for all frames of one layout.

Segments of a run differ in the contents of their tensors, not in their layout, and encoding it costs as much CPU as the
bytes.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Array
from tidegate.wire.bounds import TENSOR_RANK_MAX
from tidegate.wire.columns import Int64
from tidegate.wire.compression import (
    CODEC_LZ4,
    CODEC_NONE,
    CODECS,
    CONTENT_BYTES_MAX,
    LZ4_RATIO_MAX,
    decompress,
)

Value = TypeVar("Value")

ALIGNMENT_BYTES = 64
# Layouts cached by a process, the least recently used are evicted; a larger one is read each time.
LAYOUTS_MAX = 256
KEPT_BYTES_MAX = 4096

# Supported dtypes: NumPy's type strings without the byte order, which is always little-endian.
DTYPES: dict[str, np.dtype[np.generic]] = {
    name: np.dtype("<" + name if name[1:] != "1" else "|" + name)
    for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
}
DTYPE_NAMES: dict[np.dtype[np.generic], str] = {dtype: name for name, dtype in DTYPES.items()}

# A tensor of a single record: its name, dtype and shape; and the size of its block, 0 for raw bytes.
Kind: TypeAlias = tuple[str, np.dtype[np.generic], tuple[int, ...], int]


class TensorColumn(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of equal name, dtype and row shape in several records: their rows one after the other.

    ``offset``: of the first row, in the payload. ``shape``: of one row. ``rows``: how many each record has, one number
    when all have as many, none when each is a single value without that dimension. ``records``: positions of the
    records that have it, none when all have. ``codec``: how the rows are compressed, together ("lz4"), and
    ``stored_bytes``: into how many bytes; none and 0 for raw bytes.
    """

    name: str
    dtype: str
    offset: Int64
    shape: tuple[Int64, ...]
    rows: list[Int64]
    records: list[Int64]
    codec: str = CODEC_NONE
    stored_bytes: Int64 = 0


class Place(msgspec.Struct, frozen=True, eq=False):
    """The verified place of a tensor of several records in the payload: their rows one after the other.

    ``shape``: of all rows together. ``rows``: how many each record has, one number when all have as many; None when
    each is a single value without that dimension. ``records``: positions of those that have it, None when all have.
    ``stored_bytes``: of the block that they are compressed into; None for raw bytes.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int
    rows: list[int] | None
    records: list[int] | None
    stored_bytes: int | None = None

    def num_bytes(self) -> int:
        """The size of the values, uncompressed."""
        return math.prod(self.shape) * self.dtype.itemsize

    def values(self, payload: memoryview) -> Array:
        """The values, read-only where ``payload`` is: a view of raw bytes, or a decompressed copy.

        Raises:
            RecordError: a block does not decompress to these values.
        """
        if self.stored_bytes is None:
            return np.ndarray(self.shape, self.dtype, payload, self.offset)
        block = payload[self.offset : self.offset + self.stored_bytes]
        content = decompress(block, content_bytes=self.num_bytes(), name=self.name)
        return np.ndarray(self.shape, self.dtype, content)

    def share(self, values: Array, tensors: Sequence[dict[str, Array]]) -> None:
        """Give every record a view of its rows of ``values``."""
        owners = tensors if self.records is None else [tensors[index] for index in self.records]
        if self.rows is None:
            for index, owner in enumerate(owners):
                owner[self.name] = values[index, ...]
        elif len(owners) == 1:
            owners[0][self.name] = values
        else:
            start = 0
            for owner, count in zip(owners, spread(self.rows, len(owners)), strict=True):
                owner[self.name] = values[start : start + count]
                start += count


class Layout(msgspec.Struct, frozen=True, eq=False):
    """The places of all tensors of a frame. Compared by identity, so that results can be cached by layout."""

    places: tuple[Place, ...]


def spread(rows: list[int], num_records: int) -> list[int]:
    """The number of rows of each record."""
    return rows if len(rows) == num_records else rows * num_records


class Sheet(msgspec.Struct, frozen=True, eq=False):
    """The plan of a payload: its columns as MessagePack, and the padding behind each tensor in their order.

    ``columns``: a list of ``TensorColumn``.
    """

    columns: bytes
    paddings: list[bytes]
    payload_bytes: int


def sheet_of(kinds: Sequence[Kind]) -> Sheet:
    """The contiguous tensors of one record, of supported dtypes, each at an aligned place."""
    # Frames of one record repeat their layout, those with blocks do not.
    return _make_sheet(kinds) if any(kind[-1] for kind in kinds) else _kept_sheet(tuple(kinds))


def _make_sheet(kinds: Sequence[Kind]) -> Sheet:
    columns: list[TensorColumn] = []
    paddings: list[bytes] = []
    offset = 0
    for name, dtype, shape, stored_bytes in kinds:
        size = stored_bytes or math.prod(shape) * dtype.itemsize
        codec = CODEC_LZ4 if stored_bytes else CODEC_NONE
        rows = list(shape[:1])
        columns.append(
            TensorColumn(name, DTYPE_NAMES[dtype], offset, shape[1:], rows, [], codec, stored_bytes)
        )
        paddings.append(bytes(-size % ALIGNMENT_BYTES))
        offset += size + len(paddings[-1])
    return Sheet(_encoder.encode(columns), paddings, offset)


class Stack(msgspec.Struct, frozen=True, eq=False):
    """Tensors of equal name, dtype and row shape of several records, which lie one after the other in a payload.

    ``shapes``: of each, because asking an array for its shape makes a tuple. ``owners``: positions of their records, in
    order.
    """

    name: str
    arrays: list[Array]
    shapes: list[tuple[int, ...]]
    owners: Sequence[int]


def stacks_of(tensors: Sequence[Mapping[str, Array]]) -> list[Stack]:
    """The tensors of several records by what they have in common; samples of one prompt differ in their length only."""
    stacks: list[Stack] = []
    for name in dict.fromkeys(chain.from_iterable(tensors)):
        arrays = [each[name] for each in tensors if name in each]
        owners: Sequence[int] = range(len(tensors))
        if len(arrays) < len(tensors):
            owners = [index for index, each in enumerate(tensors) if name in each]
        dtypes, shapes = [array.dtype for array in arrays], [array.shape for array in arrays]
        if _are_alike(dtypes, shapes):
            stacks.append(Stack(name, arrays, shapes, owners))
            continue
        alike: dict[Any, list[int]] = {}
        for place, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True)):
            alike.setdefault((dtype, shape[1:], len(shape) > 0), []).append(place)
        stacks += [
            Stack(name, _at(places, arrays), _at(places, shapes), _at(places, owners))
            for places in alike.values()
        ]
    return stacks


def _at(places: Sequence[int], values: Sequence[Value]) -> list[Value]:
    return [values[place] for place in places]


def _are_alike(dtypes: list[np.dtype[Any]], shapes: list[tuple[int, ...]]) -> bool:
    num = len(shapes)
    if dtypes.count(dtypes[0]) < num:
        return False
    if shapes.count(shapes[0]) == num:
        return True
    return all(shapes) and [shape[1:] for shape in shapes].count(shapes[0][1:]) == num


def sheet_of_stacks(stacks: Sequence[Stack], *, num_records: int) -> Sheet:
    """The contiguous tensors of several records, of supported dtypes, each stack at an aligned place."""
    columns: list[TensorColumn] = []
    paddings: list[bytes] = []
    offset = 0
    for stack in stacks:
        dtype, shape, num_tensors = stack.arrays[0].dtype, stack.shapes[0], len(stack.arrays)
        row_shape = shape[1:]
        rows = [each[0] for each in stack.shapes] if shape else []
        num_rows = sum(rows) if shape else num_tensors
        if rows and rows.count(rows[0]) == num_tensors:
            del rows[1:]
        size = num_rows * math.prod(row_shape) * dtype.itemsize
        padding = bytes(-size % ALIGNMENT_BYTES)
        records = [] if num_tensors == num_records else list(stack.owners)
        columns.append(TensorColumn(stack.name, DTYPE_NAMES[dtype], offset, row_shape, rows, records))
        paddings += [b""] * (num_tensors - 1)
        paddings.append(padding)
        offset += size + len(padding)
    return Sheet(_encoder.encode(columns), paddings, offset)


_kept_sheet = lru_cache(maxsize=LAYOUTS_MAX)(_make_sheet)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[TensorColumn])


def layout_of(columns: bytes, *, num_records: int, payload_bytes: int) -> Layout:
    """The layout that ``columns`` describe, a list of ``TensorColumn`` as MessagePack.

    Raises:
        RecordError: they cannot be parsed, or do not fit a payload of ``payload_bytes`` for ``num_records``.
    """
    read = _kept_layout if len(columns) <= KEPT_BYTES_MAX else _read_layout
    return read(columns, num_records, payload_bytes)


def _read_layout(columns: bytes, num_records: int, payload_bytes: int) -> Layout:
    try:
        parsed = _decoder.decode(columns)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError("A trajectory frame's tensors cannot be parsed", why=str(error)) from error
    places = tuple([_place(column, num_records, payload_bytes) for column in parsed])
    content_bytes = sum(place.num_bytes() for place in places if place.stored_bytes is not None)
    if content_bytes > CONTENT_BYTES_MAX:
        raise RecordError(
            f"A trajectory frame's blocks claim {content_bytes} bytes of content",
            why=f"a reader allocates at most {CONTENT_BYTES_MAX}",
            fix="send shorter segments or fewer environments in each",
        )
    return Layout(places)


_kept_layout = lru_cache(maxsize=LAYOUTS_MAX)(_read_layout)


def _place(column: TensorColumn, num_records: int, payload_bytes: int) -> Place:
    name, dtype = column.name, DTYPES.get(column.dtype)
    rows, row_shape, records = column.rows, column.shape, column.records
    if dtype is None:
        raise _tensor_error(name, f"has the unknown dtype {column.dtype!r}")
    if records and not _is_ascending(records, below=num_records):
        raise _tensor_error(name, f"belongs to the records {records} of {num_records}")
    num_owners = len(records) or num_records
    if len(rows) not in (0, 1, num_owners):
        raise _tensor_error(name, f"has {len(rows)} numbers of rows for {num_owners} records")
    total_rows = sum(rows) if len(rows) == num_owners else rows[0] * num_owners if rows else num_owners
    shape = (total_rows, *row_shape)
    if len(shape) > TENSOR_RANK_MAX or min(shape) < 0 or (rows and min(rows) < 0):
        raise _tensor_error(name, f"has the impossible shape {shape}")
    if not rows and row_shape:
        raise _tensor_error(name, f"has no rows of shape {row_shape}")
    start, size = column.offset, math.prod(shape) * dtype.itemsize
    stored_bytes = _stored_bytes(column, size)
    if stored_bytes is not None:
        size = stored_bytes
    if start < 0:
        raise _tensor_error(name, f"begins at byte {start}")
    if start + size > payload_bytes:
        raise _tensor_error(
            name,
            f"ends at byte {start + size} of a payload of {payload_bytes}",
            why="it was truncated or its shape is wrong",
        )
    if not size:
        try:
            np.empty(shape, dtype)
        except ValueError as error:  # its other dimensions exceed those of an array
            raise _tensor_error(name, f"has the impossible shape {shape}") from error
    return Place(name, dtype, shape, start, rows or None, records or None, stored_bytes)


def _stored_bytes(column: TensorColumn, content_bytes: int) -> int | None:
    """The size of a column's block, checked against what it claims to contain; None for raw bytes."""
    name, stored_bytes = column.name, column.stored_bytes
    if column.codec not in CODECS:
        raise _tensor_error(name, f"is compressed by the unknown codec {column.codec!r}")
    if (column.codec == CODEC_NONE) != (stored_bytes == 0) or stored_bytes < 0:
        raise _tensor_error(name, f"has a block of {stored_bytes} bytes of the codec {column.codec!r}")
    if column.codec == CODEC_NONE:
        return None
    if not 0 < content_bytes <= LZ4_RATIO_MAX * stored_bytes:
        raise _tensor_error(
            name,
            f"claims {content_bytes} bytes in a block of {stored_bytes}",
            why=f"LZ4 compresses by at most {LZ4_RATIO_MAX}",
        )
    return stored_bytes


def _is_ascending(records: list[int], *, below: int) -> bool:
    return all(first < second for first, second in zip([-1, *records], [*records, below], strict=True))


def _tensor_error(name: str, what: str, *, why: str = "") -> RecordError:
    return RecordError(f"Tensor {name!r} of a trajectory frame {what}", why=why)
