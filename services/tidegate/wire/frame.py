"""The frame: trajectories as one message, tensors outside of protobuf so that they decode without a copy.

Layout, all integers little-endian::

    "TGF2" | digest | u32 head length | head | zero padding to 64 | payload
    digest  = XXH3-128 of everything behind it
    head    = FrameHead as MessagePack
    payload = each tensor column's raw bytes, every column at a multiple of 64 from the payload's start

What the records of a frame share is written once (see ``wire.columns``), and so is a tensor's name, dtype and shape:
tensors of equal name in a group lie one after the other, each record's a view of its rows.
The decoder is total: any byte string gives records or a ``RecordError``.
"""

import math
import struct
from collections.abc import Sequence

import msgspec
import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Array, Trajectory
from tidegate.wire.columns import Int64, RecordColumns, columns_of
from tidegate.wire.digest import DIGEST_BYTES, Digest, digest_of

MAGIC = b"TGF2"
ALIGNMENT_BYTES = 64
# A head holds ids and provenance only; prompts and logs are bounded well below this.
HEAD_BYTES_MAX = 4 * 1024 * 1024
TENSOR_RANK_MAX = 8
# Below it, copying pieces together costs less than handing on each.
JOINED_BYTES_MAX = 32 * 1024
_LENGTH = struct.Struct("<I")
_DIGEST_STOP = len(MAGIC) + DIGEST_BYTES
_PREFIX_BYTES = _DIGEST_STOP + _LENGTH.size

# What travels: NumPy's type strings without the byte order, which is always little-endian.
DTYPES: dict[str, np.dtype[np.generic]] = {
    name: np.dtype("<" + name if name[1:] != "1" else "|" + name)
    for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
}
_NAMES: dict[np.dtype[np.generic], str] = {dtype: name for name, dtype in DTYPES.items()}


class TensorColumn(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of equal name, dtype and row shape in several records: their rows one after the other.

    ``offset``: of the first row, in the payload. ``shape``: of one row. ``rows``: how many each record has, one number
    when all have as many, none when each is a single value without that dimension. ``records``: positions of the
    records that have it, none when all have.
    """

    name: str
    dtype: str
    offset: Int64
    shape: tuple[Int64, ...]
    rows: list[Int64]
    records: list[Int64]


class FrameHead(msgspec.Struct, frozen=True, array_like=True):
    """Everything of a frame but its payload."""

    columns: RecordColumns
    tensors: list[TensorColumn]
    payload_size: Int64


_head_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(FrameHead)


class TensorRows(msgspec.Struct, frozen=True, eq=False):
    """A tensor of several records: their rows one after the other.

    ``rows``: how many each has, one number when all have as many; None when each is a single value without that
    dimension. ``records``: positions of those that have it, None when all have.
    """

    name: str
    values: Array
    rows: list[int] | None
    records: list[int] | None

    def share(self, tensors: Sequence[dict[str, Array]]) -> None:
        """Give every record a view of its rows."""
        owners = tensors if self.records is None else [tensors[index] for index in self.records]
        if self.rows is None:
            for index, owner in enumerate(owners):
                owner[self.name] = self.values[index, ...]
        elif len(owners) == 1:
            owners[0][self.name] = self.values
        else:
            start = 0
            for owner, count in zip(owners, spread(self.rows, len(owners)), strict=True):
                owner[self.name] = self.values[start : start + count]
                start += count


class Frame(msgspec.Struct, frozen=True, eq=False):
    """A frame that was checked whole: its records as columns. ``head``: see ``provenance_of``."""

    head: bytes
    columns: RecordColumns
    tensors: list[TensorRows]

    def trajectories(self) -> list[Trajectory]:
        """The records one by one; their tensors are read-only views into the frame."""
        by_record: list[dict[str, Array]] = [{} for _ in range(len(self.columns))]
        for tensor in self.tensors:
            tensor.share(by_record)
        return self.columns.records(by_record)


def spread(rows: list[int], num_records: int) -> list[int]:
    """The number of rows of each record."""
    return rows if len(rows) == num_records else rows * num_records


def encode_frame(trajectories: Sequence[Trajectory]) -> bytes:
    """Trajectories as one message body.

    Raises:
        RecordError: a tensor has a dtype that does not travel.
    """
    tensors: list[TensorColumn] = []
    payload: list[bytes | memoryview] = []
    offset = 0
    for (name, dtype, has_rows, row_shape), (arrays, owners) in _by_column(trajectories).items():
        rows = [array.shape[0] for array in arrays] if has_rows else []
        if rows.count(rows[0] if rows else 0) == len(rows):
            del rows[1:]
        records = owners if len(owners) < len(trajectories) else []
        tensors.append(TensorColumn(name, dtype, offset, row_shape, rows, records))
        pieces = [array.data for array in arrays]
        size = sum([piece.nbytes for piece in pieces])
        padding = -size % ALIGNMENT_BYTES
        payload += [b"".join(pieces)] if len(pieces) > 1 and size < JOINED_BYTES_MAX else pieces
        if padding:
            payload.append(bytes(padding))
        offset += size + padding
    head = _head_encoder.encode(FrameHead(columns_of(trajectories), tensors, offset))
    start = _PREFIX_BYTES + len(head)
    parts = [_LENGTH.pack(len(head)) + head + bytes(-start % ALIGNMENT_BYTES), *payload]
    if offset < JOINED_BYTES_MAX:
        parts = [b"".join(parts)]
    digest = Digest()
    for part in parts:
        digest.update(part)
    return b"".join([MAGIC, digest.digest(), *parts])


_ColumnKey = tuple[str, str, bool, tuple[int, ...]]


def _by_column(trajectories: Sequence[Trajectory]) -> dict[_ColumnKey, tuple[list[Array], list[int]]]:
    """Arrays as they travel, with their records' positions, by name, dtype, whether they have rows, a row's shape."""
    columns: dict[_ColumnKey, tuple[list[Array], list[int]]] = {}
    for index, trajectory in enumerate(trajectories):
        for name, tensor in trajectory.tensors.items():
            dtype = _NAMES.get(tensor.dtype)
            if dtype is None or not tensor.flags.c_contiguous:
                tensor, dtype = _as_travels(name, tensor, trajectory.trajectory_id)
            shape = tensor.shape
            key = (name, dtype, bool(shape), shape[1:])
            column = columns.get(key)
            if column is None:
                columns[key] = ([tensor], [index])
            else:
                column[0].append(tensor)
                column[1].append(index)
    return columns


def _as_travels(name: str, tensor: Array, trajectory_id: str) -> tuple[Array, str]:
    dtype = tensor.dtype.str[1:]
    if dtype not in DTYPES:
        raise RecordError(
            f"Tensor {name} of {trajectory_id} has dtype {tensor.dtype}",
            fix=f"convert it to one of {', '.join(DTYPES)}",
        )
    return np.array(tensor, dtype=DTYPES[dtype], order="C"), dtype


def open_frame(data: bytes | memoryview) -> Frame:
    """One message's records as columns, whose tensors are read-only views into ``data``.

    Raises:
        RecordError: ``data`` is truncated, malformed, or does not match its digest.
    """
    view = memoryview(data)
    stop = _head_stop(view)
    head_bytes = bytes(view[_PREFIX_BYTES:stop])
    head = _parse_head(head_bytes)
    payload = view[min(stop + -stop % ALIGNMENT_BYTES, len(view)) :]
    if len(payload) != head.payload_size:
        raise RecordError(
            f"A trajectory frame holds {len(payload)} payload bytes, its head promises {head.payload_size}",
            why="the message was truncated or padded on its way",
        )
    _check_digest(view)
    num_records = len(head.columns)
    return Frame(
        head=head_bytes,
        columns=head.columns,
        tensors=[_read_tensor(column, payload, num_records) for column in head.tensors],
    )


def decode_frame(data: bytes | memoryview) -> list[Trajectory]:
    """The trajectories of one message; their tensors are read-only views into ``data``.

    Raises:
        RecordError: as ``open_frame``.
    """
    return open_frame(data).trajectories()


def verify_frame(data: bytes | memoryview) -> None:
    """Check that bytes that were a frame once still are, without reading them.

    Raises:
        RecordError: ``data`` is truncated or does not match its digest.
    """
    view = memoryview(data)
    _head_stop(view)
    _check_digest(view)


def provenance_of(frame: bytes | memoryview) -> bytes:
    """The head of a frame alone: all of its trajectories but their tensors, for a ledger that outlives the payload.

    Raises:
        RecordError: ``frame`` is truncated or malformed.
    """
    view = memoryview(frame)
    return bytes(view[_PREFIX_BYTES : _head_stop(view)])


def decode_provenance(head: bytes) -> list[Trajectory]:
    """The trajectories of what ``provenance_of`` returned, without tensors.

    Raises:
        RecordError: ``head`` is malformed.
    """
    columns = _parse_head(head).columns
    return columns.records([{} for _ in range(len(columns))])


def _head_stop(view: memoryview) -> int:
    magic = bytes(view[: len(MAGIC)])
    if magic != MAGIC:
        raise RecordError(
            f"A trajectory frame begins with {magic!r} instead of {MAGIC!r}",
            fix="check that the sender speaks this protocol version",
        )
    if len(view) < _PREFIX_BYTES:
        raise RecordError(f"A trajectory frame of {len(view)} bytes is shorter than its prefix")
    (head_size,) = _LENGTH.unpack_from(view, _DIGEST_STOP)
    stop = _PREFIX_BYTES + head_size
    if head_size > HEAD_BYTES_MAX or stop > len(view):
        raise RecordError(f"A trajectory frame's head claims {head_size} bytes, the frame has {len(view)}")
    return stop


def _check_digest(view: memoryview) -> None:
    if digest_of(view[_DIGEST_STOP:]) != bytes(view[len(MAGIC) : _DIGEST_STOP]):
        raise RecordError("A trajectory frame does not match its digest", why="its bytes changed on the way")


def _parse_head(head_bytes: bytes) -> FrameHead:
    try:
        head = _head_decoder.decode(head_bytes)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError("A trajectory frame's head cannot be parsed", why=str(error)) from error
    head.columns.check()
    return head


def _read_tensor(column: TensorColumn, payload: memoryview, num_records: int) -> TensorRows:
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
    start = column.offset
    if start < 0:
        raise _tensor_error(name, f"begins at byte {start}")
    stop = start + math.prod(shape) * dtype.itemsize
    if stop > len(payload):
        raise _tensor_error(
            name,
            f"ends at byte {stop} of a payload of {len(payload)}",
            why="it was truncated or its shape is wrong",
        )
    try:
        values: Array = np.ndarray(shape, dtype, payload, start)
    except ValueError as error:  # empty, with other dimensions beyond what an array can have
        raise _tensor_error(name, f"has the impossible shape {shape}") from error
    return TensorRows(name=name, values=values, rows=rows or None, records=records or None)


def _is_ascending(records: list[int], *, below: int) -> bool:
    return all(first < second for first, second in zip([-1, *records], [*records, below], strict=True))


def _tensor_error(name: str, what: str, *, why: str = "") -> RecordError:
    return RecordError(f"Tensor {name!r} of a trajectory frame {what}", why=why)
