"""The frame: trajectories as one message, tensors outside of protobuf so that they decode without a copy.

Layout, all integers little-endian::

    "TGF1" | u32 head length | head (TrajectoryFrame) | zero padding to 64 | payload
    payload = each tensor's raw bytes, every tensor at a multiple of 64 from the payload's start

The decoder is total: any byte string gives records or a ``RecordError``.
"""

import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError

from tidegate.core.errors import RecordError
from tidegate.core.records import Array, Trajectory
from tidegate.v1 import trajectory_pb2
from tidegate.wire.convert import envelope_from_proto, envelope_to_proto

MAGIC = b"TGF1"
ALIGNMENT_BYTES = 64
# A head holds ids and provenance only; prompts and logs are bounded well below this.
HEAD_BYTES_MAX = 4 * 1024 * 1024
TENSOR_RANK_MAX = 8
_PREFIX = struct.Struct("<4sI")

# What travels: NumPy's type strings without the byte order, which is always little-endian.
DTYPES: dict[str, np.dtype[np.generic]] = {
    name: np.dtype("<" + name if name[1:] != "1" else "|" + name)
    for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
}


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def encode_frame(trajectories: Sequence[Trajectory]) -> bytes:
    """Trajectories as one message body.

    Raises:
        RecordError: a tensor has a dtype that does not travel.
    """
    head = trajectory_pb2.TrajectoryFrame()
    payload: list[bytes] = []
    offset = 0
    for trajectory in trajectories:
        envelope = envelope_to_proto(trajectory)
        for name, tensor in trajectory.tensors.items():
            dtype = tensor.dtype.str[1:]
            if dtype not in DTYPES:
                raise RecordError(
                    f"Tensor {name} of {trajectory.trajectory_id} has dtype {tensor.dtype}",
                    fix=f"convert it to one of {', '.join(DTYPES)}",
                )
            raw = np.ascontiguousarray(tensor, dtype=DTYPES[dtype]).tobytes()
            envelope.tensors.add(
                name=name, dtype=dtype, shape=tensor.shape, offset=offset, checksum=zlib.crc32(raw)
            )
            padding = _aligned(len(raw)) - len(raw)
            payload.append(raw)
            payload.append(bytes(padding))
            offset += len(raw) + padding
        head.trajectories.append(envelope)
    head.payload_size = offset
    head_bytes = head.SerializeToString()
    start = _PREFIX.size + len(head_bytes)
    return b"".join(
        (_PREFIX.pack(MAGIC, len(head_bytes)), head_bytes, bytes(_aligned(start) - start), *payload)
    )


def decode_frame(data: bytes | memoryview) -> list[Trajectory]:
    """The trajectories of one message; their tensors are read-only views into ``data``.

    Raises:
        RecordError: ``data`` is truncated, malformed, or a tensor does not match its checksum.
    """
    view = memoryview(data)
    head, payload_start = _decode_head(view)
    payload = view[payload_start:]
    if len(payload) != head.payload_size:
        raise RecordError(
            f"A trajectory frame holds {len(payload)} payload bytes, its head promises {head.payload_size}",
            why="the message was truncated or padded on its way",
        )
    return [
        envelope_from_proto(
            envelope,
            {spec.name: _decode_tensor(spec, payload, envelope.trajectory_id) for spec in envelope.tensors},
        )
        for envelope in head.trajectories
    ]


def provenance_of(frame: bytes | memoryview) -> bytes:
    """The head of a frame alone: all of its trajectories but their tensors, for a ledger that outlives the payload.

    Raises:
        RecordError: ``frame`` is truncated or malformed.
    """
    view = memoryview(frame)
    return bytes(view[_PREFIX.size : _head_stop(view)])


def decode_provenance(head: bytes) -> list[Trajectory]:
    """The trajectories of what ``provenance_of`` returned, without tensors.

    Raises:
        RecordError: ``head`` is malformed.
    """
    return [envelope_from_proto(envelope, {}) for envelope in _parse_head(head).trajectories]


def _decode_head(view: memoryview) -> tuple[trajectory_pb2.TrajectoryFrame, int]:
    stop = _head_stop(view)
    return _parse_head(bytes(view[_PREFIX.size : stop])), min(_aligned(stop), len(view))


def _head_stop(view: memoryview) -> int:
    if len(view) < _PREFIX.size:
        raise RecordError(f"A trajectory frame of {len(view)} bytes is shorter than its prefix")
    magic, head_size = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise RecordError(
            f"A trajectory frame begins with {bytes(magic)!r} instead of {MAGIC!r}",
            fix="check that the sender speaks this protocol version",
        )
    stop = _PREFIX.size + head_size
    if head_size > HEAD_BYTES_MAX or stop > len(view):
        raise RecordError(f"A trajectory frame's head claims {head_size} bytes, the frame has {len(view)}")
    return stop


def _parse_head(head_bytes: bytes) -> trajectory_pb2.TrajectoryFrame:
    head = trajectory_pb2.TrajectoryFrame()
    try:
        head.ParseFromString(head_bytes)
    except DecodeError as error:
        raise RecordError("A trajectory frame's head cannot be parsed", why=str(error)) from error
    if not head.trajectories:
        raise RecordError("A trajectory frame holds no trajectory")
    return head


def _decode_tensor(spec: trajectory_pb2.TensorSpec, payload: memoryview, trajectory_id: str) -> Array:
    dtype = DTYPES.get(spec.dtype)
    shape = tuple(spec.shape)
    if dtype is None:
        raise _tensor_error(spec, trajectory_id, f"has the unknown dtype {spec.dtype!r}")
    if len(shape) > TENSOR_RANK_MAX or min(shape, default=0) < 0:
        raise _tensor_error(spec, trajectory_id, f"has the impossible shape {shape}")
    start = spec.offset
    stop = start + math.prod(shape) * dtype.itemsize
    if stop > len(payload):
        raise _tensor_error(
            spec,
            trajectory_id,
            f"ends at byte {stop} of a payload of {len(payload)}",
            why="it was truncated or its shape is wrong",
        )
    if zlib.crc32(payload[start:stop]) != spec.checksum:
        raise _tensor_error(
            spec, trajectory_id, "does not match its checksum", why="its bytes changed on the way"
        )
    try:
        return np.ndarray(shape, dtype, payload, start)
    except ValueError as error:  # empty, with other dimensions beyond what an array can have
        raise _tensor_error(spec, trajectory_id, f"has the impossible shape {shape}") from error


def _tensor_error(
    spec: trajectory_pb2.TensorSpec, trajectory_id: str, what: str, *, why: str = ""
) -> RecordError:
    return RecordError(f"Tensor {spec.name!r} of trajectory {trajectory_id!r} {what}", why=why)
