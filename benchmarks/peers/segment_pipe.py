"""A segment as one message of a pipe: a line of JSON, then the raw tensors one after another."""

import math

import msgspec
import numpy as np

from tidegate.actor.engines.port import Sample
from tidegate.core.records import Array, EpisodeEnd


class TensorLine(msgspec.Struct, frozen=True):
    """Where the next tensor ends follows from its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class SegmentLine(msgspec.Struct, frozen=True):
    """All but the tensors. ``version_step``: of the oldest policy that acted in the segment."""

    version_step: int
    num_steps: int
    episodes: tuple[EpisodeEnd, ...]
    tensors: tuple[TensorLine, ...]


class Segment(msgspec.Struct, frozen=True, eq=False):
    """A segment as the learner gets it; tensors are views into the message."""

    line: SegmentLine
    tensors: dict[str, Array]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(SegmentLine)


def pack_segment(sample: Sample) -> bytes:
    """What an actor sends."""
    line = SegmentLine(
        version_step=min(span.version.step for span in sample.spans),
        num_steps=sample.num_steps,
        episodes=sample.episodes,
        tensors=tuple(
            TensorLine(name, tensor.dtype.str, tensor.shape) for name, tensor in sample.tensors.items()
        ),
    )
    return b"".join(
        (
            _encoder.encode(line),
            b"\n",
            *(np.ascontiguousarray(each).tobytes() for each in sample.tensors.values()),
        )
    )


def unpack_segment(data: bytes) -> Segment:
    """What the learner reads."""
    head, position = data.index(b"\n"), 0
    line = _decoder.decode(data[:head])
    position = head + 1
    tensors: dict[str, Array] = {}
    for tensor in line.tensors:
        dtype = np.dtype(tensor.dtype)
        size = math.prod(tensor.shape)
        tensors[tensor.name] = np.frombuffer(data, dtype, count=size, offset=position).reshape(tensor.shape)
        position += size * dtype.itemsize
    return Segment(line, tensors)
