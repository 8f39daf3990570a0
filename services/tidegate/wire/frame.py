"""The frame: trajectories as one message, tensors outside of protobuf, decoded without a copy.

Layout, all integers little-endian::

    "TGF2" | digest | u32 head length | head | zero padding to 64 | payload
    digest  = XXH3-128 of everything after it
    head    = FrameHead as MessagePack
    payload = each tensor column's raw bytes, every column at a multiple of 64 from the payload's start;
              of images one LZ4 block (see ``wire.compression``), which the head declares

Values that the records of a frame share are written once (see ``wire.columns``), as is a tensor's name, dtype and
shape: tensors of equal name in a group lie one after the other, each record's a view of its rows. The decoder is total:
any byte string gives records or a ``RecordError``, and what it allocates for blocks is bounded before it does.
"""

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np
from blake3 import blake3

from tidegate.core.errors import RecordError
from tidegate.core.records import Array, Trajectory
from tidegate.wire.columns import Int64, RecordColumns, columns_of
from tidegate.wire.compression import CONTENT_BYTES_MAX, compress, is_compressible
from tidegate.wire.digest import DIGEST_BYTES, digest_of
from tidegate.wire.layout import (
    ALIGNMENT_BYTES,
    DTYPE_NAMES,
    DTYPES,
    Kind,
    Layout,
    Sheet,
    Stack,
    layout_of,
    sheet_of,
    sheet_of_stacks,
    stacks_of,
)

# An array is one to ``join`` and to every other reader of buffers; its annotation says so from Python 3.12 on.
Sendable: TypeAlias = Any

MAGIC = b"TGF2"
# A head contains ids and provenance only; prompts and logs are bounded well below this.
HEAD_BYTES_MAX = 4 * 1024 * 1024
BLAKE3_CHUNK_BYTES, BLAKE3_UNIT_BYTES = 1024, 16 * 1024
# Above it a copy costs more than it saves.
FILLED_BYTES_MAX = 4 * BLAKE3_UNIT_BYTES
_LENGTH = struct.Struct("<I")
_SIZES = struct.Struct("<QQ")
_DIGEST_STOP = len(MAGIC) + DIGEST_BYTES
_PREFIX_BYTES = _DIGEST_STOP + _LENGTH.size


class FrameHead(msgspec.Struct, frozen=True, array_like=True):
    """A frame without its payload. ``tensors``: a list of ``TensorColumn`` (see ``wire.layout``)."""

    columns: RecordColumns
    tensors: msgspec.Raw
    payload_size: Int64


_head_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(FrameHead)


class Frame(msgspec.Struct, frozen=True, eq=False):
    """A verified frame: its records as columns, and the places of their tensors in its payload.

    ``head``: see ``provenance_of``. ``tensors``: the part of it that describes them. ``decompressed``: the values of
    compressed places, by their index in ``layout``.
    """

    head: bytes
    columns: RecordColumns
    tensors: msgspec.Raw
    layout: Layout
    payload: memoryview
    decompressed: dict[int, Array]

    def trajectories(self) -> list[Trajectory]:
        """The records one by one; their tensors are read-only views into the frame, or of what was decompressed."""
        by_record: list[dict[str, Array]] = [{} for _ in range(len(self.columns))]
        for index, place in enumerate(self.layout.places):
            values = self.decompressed.get(index)
            place.share(place.values(self.payload) if values is None else values, by_record)
        return self.columns.records(by_record)

    def content_digest(self) -> bytes:
        """BLAKE3 of what an actor made: ids, versions and tensors, whatever others add to its records."""
        return _content_digest(self.columns, self.tensors, self.payload)


def written_digest(frame: bytes) -> bytes:
    """The digest that a frame carries, of everything after it; not checked here."""
    return frame[len(MAGIC) : _DIGEST_STOP]


def encode_frame(trajectories: Sequence[Trajectory]) -> bytes:
    """Trajectories as one message body.

    Raises:
        RecordError: there are none, or a tensor has a dtype that frames do not support.
    """
    data, _ = _encode(trajectories)
    return data


def encode_with_digest(trajectories: Sequence[Trajectory]) -> tuple[bytes, bytes]:
    """Trajectories as one message body, and its ``Frame.content_digest``, which an actor proves.

    Raises:
        RecordError: as ``encode_frame``.
    """
    data, head = _encode(trajectories)
    payload = memoryview(data)[len(data) - head.payload_size :]
    return data, _content_digest(head.columns, head.tensors, payload)


def _encode(trajectories: Sequence[Trajectory]) -> tuple[bytes, FrameHead]:
    if len(trajectories) == 1:
        sent, sheet = _planned(trajectories[0])
    else:
        sent, sheet = _planned_together(trajectories)
    head = FrameHead(columns_of(trajectories), msgspec.Raw(sheet.columns), sheet.payload_bytes)
    written = _head_encoder.encode(head)
    start = _PREFIX_BYTES + len(written)
    parts: list[Sendable] = [_LENGTH.pack(len(written)), written, bytes(-start % ALIGNMENT_BYTES)]
    parts += chain.from_iterable(zip(sent, sheet.paddings, strict=True))
    # Twice in memory for a moment, which costs less than hashing piece by piece.
    body = b"".join(parts)
    return b"".join([MAGIC, digest_of(body), body]), head


def _planned(trajectory: Trajectory) -> tuple[list[Sendable], Sheet]:
    """What is sent of one record's tensors, images as blocks, and where it goes."""
    sent: list[Sendable] = []
    kinds: list[Kind] = []
    room_bytes = CONTENT_BYTES_MAX
    for name, tensor in trajectory.tensors.items():
        if tensor.dtype not in DTYPE_NAMES or not tensor.flags.c_contiguous:
            tensor = _as_travels(name, tensor, trajectory.trajectory_id)
        block = compress(tensor) if is_compressible(tensor, room_bytes) else None
        if block is None:
            sent.append(tensor)
            kinds.append((name, tensor.dtype, tensor.shape, 0))
        else:
            room_bytes -= tensor.nbytes
            sent.append(block)
            kinds.append((name, tensor.dtype, tensor.shape, len(block)))
    return sent, sheet_of(kinds)


def _planned_together(trajectories: Sequence[Trajectory]) -> tuple[list[Sendable], Sheet]:
    """The same of a group, whose completions are no images."""
    stacks = [
        _as_travels_together(stack, trajectories)
        for stack in stacks_of([trajectory.tensors for trajectory in trajectories])
    ]
    sent: list[Sendable] = [array for stack in stacks for array in stack.arrays]
    return sent, sheet_of_stacks(stacks, num_records=len(trajectories))


def _as_travels_together(stack: Stack, trajectories: Sequence[Trajectory]) -> Stack:
    arrays = stack.arrays
    if arrays[0].dtype in DTYPE_NAMES and all(array.flags.c_contiguous for array in arrays):
        return stack
    owners = [trajectories[owner].trajectory_id for owner in stack.owners]
    arrays = [_as_travels(stack.name, array, owner) for owner, array in zip(owners, arrays, strict=True)]
    return msgspec.structs.replace(stack, arrays=arrays)


def _as_travels(name: str, tensor: Array, trajectory_id: str) -> Array:
    dtype = DTYPES.get(tensor.dtype.str[1:])
    if dtype is None:
        raise RecordError(
            f"Tensor {name} of {trajectory_id} has dtype {tensor.dtype}",
            fix=f"convert it to one of {', '.join(DTYPES)}",
        )
    return np.array(tensor, dtype=dtype, order="C")


def open_frame(data: bytes | memoryview) -> Frame:
    """One message's records as columns, and the places of their tensors in ``data``; images are decompressed.

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
            f"A trajectory frame contains {len(payload)} payload bytes, its head declares {head.payload_size}",
            why="the message was truncated or padded on its way",
        )
    _check_digest(view)
    layout = layout_of(bytes(head.tensors), num_records=len(head.columns), payload_bytes=len(payload))
    # After the digest, so that nothing is allocated for a damaged message.
    decompressed = {
        index: place.values(payload)
        for index, place in enumerate(layout.places)
        if place.stored_bytes is not None
    }
    return Frame(
        head=head_bytes,
        columns=head.columns,
        tensors=head.tensors,
        layout=layout,
        payload=payload,
        decompressed=decompressed,
    )


def _content_digest(columns: RecordColumns, tensors: msgspec.Raw, payload: memoryview) -> bytes:
    identity = msgspec.msgpack.encode((columns.trajectory_id, columns.spans))
    # The sizes last, so that no other division of the same bytes has this digest.
    description = b"".join([tensors, identity, _SIZES.pack(len(payload), len(tensors))])
    size = len(payload) + len(description)
    if size > FILLED_BYTES_MAX:
        # The payload first: behind a few bytes its chunks would be hashed in smaller pieces, at half the speed.
        digest = blake3(payload)
        digest.update(description)
        return digest.digest()
    # BLAKE3 hashes up to 16 chunks of 1 KiB at once, and other numbers in smaller and smaller pieces: with zeros
    # between the two, as many as make such a number, it hashes 16 kB in 2.5 us instead of 7.
    unit_bytes = min(BLAKE3_UNIT_BYTES, max(BLAKE3_CHUNK_BYTES, 1 << (size - 1).bit_length()))
    return blake3(b"".join([payload, bytes(-size % unit_bytes), description])).digest()


def decode_frame(data: bytes | memoryview) -> list[Trajectory]:
    """The trajectories of one message; their tensors are read-only views into ``data``, or decompressed images.

    Raises:
        RecordError: as ``open_frame``.
    """
    return open_frame(data).trajectories()


def verify_frame(data: bytes | memoryview) -> None:
    """Check the digest of a frame that was read before, without decoding it.

    Raises:
        RecordError: ``data`` is truncated or does not match its digest.
    """
    view = memoryview(data)
    _head_stop(view)
    _check_digest(view)


def provenance_of(frame: bytes | memoryview) -> bytes:
    """The head of a frame: its trajectories without tensors, for a ledger that outlives the payload.

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
    columns = columns_of_provenance(head)
    return columns.records([{} for _ in range(len(columns))])


def columns_of_provenance(head: bytes) -> RecordColumns:
    """The same as columns.

    Raises:
        RecordError: ``head`` is malformed.
    """
    return _parse_head(head).columns


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
