"""A sampled batch as one contiguous frame: what was drawn, its tensors, and images as the blocks they lie in.

Layout, all integers little-endian::

    "TGS1" | digest | u32 head length | head | zero padding to 64 | payload
    digest  = XXH3-128 of everything after it
    head    = SampleHead as MessagePack
    payload = the tensors' raw bytes, each at a multiple of 64 from the payload's start

An image is given as LZ4 blocks of frames, as the store keeps them, and, for each of its stacked frames, the position of
that frame among all frames of the blocks: only the learner decompresses. The decoder is total: any byte string gives a
batch or a ``RecordError``, and what it allocates is bounded before it does.

Shapes: B units, K blocks.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import RecordError
from tidegate.core.ids import TrajectoryId
from tidegate.core.records import Array, EpisodeEnd, VersionSpan
from tidegate.wire.columns import EpisodeRow, Int64, SpanRow, spans_of
from tidegate.wire.compression import CONTENT_BYTES_MAX, LZ4_RATIO_MAX, decompress
from tidegate.wire.digest import DIGEST_BYTES, digest_of
from tidegate.wire.layout import ALIGNMENT_BYTES, DTYPES, TENSOR_RANK_MAX

MAGIC = b"TGS1"
_LENGTH = struct.Struct("<I")
_DIGEST_STOP = len(MAGIC) + DIGEST_BYTES
_PREFIX_BYTES = _DIGEST_STOP + _LENGTH.size
# Tensors of the frame itself beside those of the units.
IDS, PROBABILITIES, ROW_OF = "ids", "probabilities", "row_of"


class SampledRow(msgspec.Struct, frozen=True, array_like=True):
    """A trajectory with units in the batch: what the learner needs to judge its staleness, and to commit its first use.

    ``age_s``: seconds since its rollout started, when the batch was drawn, by the store's clock. ``is_unused``: no
    surviving gradient had used it then.
    """

    trajectory_id: TrajectoryId
    spans: tuple[SpanRow, ...]
    started_at_s: float
    age_s: float
    is_unused: bool

    def version_spans(self) -> tuple[VersionSpan, ...]:
        """The spans as records have them."""
        return spans_of(self.spans)


class SampledTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor at ``offset`` of the payload."""

    name: str
    dtype: str
    shape: tuple[Int64, ...]
    offset: Int64


class SampledImage(msgspec.Struct, frozen=True, array_like=True):
    """An image of ``stack`` frames, each of ``frame_shape``.

    ``names``: of the tensors that it gives, (B, stack, ...) each, or (B, ...) of an image that is no stack; a single
    one has what each unit shows, M observations, as its second dimension.
    """

    names: tuple[str, ...]
    frame_shape: tuple[Int64, ...]
    stack: Int64


class SampleHead(msgspec.Struct, frozen=True, array_like=True):
    """The frame without its tensors.

    ``num_open``: units that could have been drawn. ``inserted_steps``: steps that actors recorded so far.
    ``episodes``: that ended in segments which arrived since the last batch.
    """

    batch_id: str
    num_open: Int64
    inserted_steps: Int64
    rows: list[SampledRow]
    episodes: list[EpisodeRow]
    images: list[SampledImage]
    tensors: list[SampledTensor]
    payload_size: Int64


class ReplaySample(msgspec.Struct, frozen=True, eq=False):
    """A sampled batch as the learner gets it: train it and commit it with priorities, or release it.

    ``ids``: of the units, in order (B,). ``probabilities``: with which each was drawn, of ``num_open`` units (B,).
    ``row_of``: the place of each unit's trajectory in ``rows`` (B,). ``tensors``: see
    ``trajectory_store.replay.windows``; read-only views, images decompressed. ``waited_s``: between the arrival of the
    request and the draw.
    """

    batch_id: str
    ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    row_of: NDArray[np.int64]
    rows: list[SampledRow]
    tensors: dict[str, Array]
    num_open: int
    inserted_steps: int
    episodes: tuple[EpisodeEnd, ...]
    waited_s: float = 0.0


class ImageToSend(msgspec.Struct, frozen=True, eq=False):
    """An image's blocks (K), the number of frames in each, and the frames of each unit's observations (B, M, stack).

    ``frames``: positions among the frames of all blocks, in order.
    """

    image: SampledImage
    blocks: Sequence[bytes | memoryview]
    block_frames: NDArray[np.int32]
    frames: NDArray[np.int32]


def encode_sample(
    head: SampleHead, tensors: Mapping[str, Array], images: Sequence[ImageToSend] = ()
) -> bytes:
    """A sampled batch as one frame; ``head`` without its images, tensors and size."""
    sent: dict[str, Array | Sequence[bytes | memoryview]] = {**tensors}
    for item in images:
        name = item.image.names[0]
        sent[f"{name}/blocks"] = item.blocks
        sent[f"{name}/block_sizes"] = np.array([len(block) for block in item.blocks], np.int32)
        sent[f"{name}/block_frames"] = item.block_frames.astype(np.int32)
        sent[f"{name}/frames"] = item.frames.astype(np.int32)
    described: list[SampledTensor] = []
    payload: list[bytes | memoryview] = []
    offset = 0
    for name, value in sent.items():
        if isinstance(value, np.ndarray):
            contiguous = np.ascontiguousarray(value)
            dtype, shape, size = contiguous.dtype.str[1:], contiguous.shape, contiguous.nbytes
            payload.append(contiguous.data)
        else:
            size = sum(map(len, value))
            dtype, shape = "u1", (size,)
            payload += value
        padding = bytes(-size % ALIGNMENT_BYTES)
        payload.append(padding)
        described.append(SampledTensor(name, dtype, shape, offset))
        offset += size + len(padding)
    whole = msgspec.structs.replace(
        head, images=[item.image for item in images], tensors=described, payload_size=offset
    )
    encoded = _encoder.encode(whole)
    start = _PREFIX_BYTES + len(encoded)
    body = b"".join([_LENGTH.pack(len(encoded)), encoded, bytes(-start % ALIGNMENT_BYTES), *payload])
    return b"".join([MAGIC, digest_of(body), body])


def decode_sample(data: bytes | memoryview) -> ReplaySample:
    """The batch of a frame; its tensors are views into ``data`` where they are no images.

    Raises:
        RecordError: ``data`` is truncated, malformed, does not match its digest, or contradicts itself.
    """
    view = memoryview(data)
    head, payload = _open(view)
    tensors = {tensor.name: _tensor(tensor, payload) for tensor in head.tensors}
    ids = _whole(tensors, IDS, np.int64)
    probabilities = _whole(tensors, PROBABILITIES, np.float64)
    row_of = _whole(tensors, ROW_OF, np.int64)
    if not len(ids) == len(probabilities) == len(row_of):
        raise RecordError(f"A sampled batch has {len(ids)} ids and {len(probabilities)} probabilities")
    if len(row_of) and not 0 <= int(row_of.min()) <= int(row_of.max()) < len(head.rows):
        raise RecordError(f"A sampled batch refers to trajectory {int(row_of.max())} of {len(head.rows)}")
    for image in head.images:
        tensors |= _decode_image(image, tensors, num_units=len(ids))
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or len(tensor) != len(ids):
            raise RecordError(f"A sampled batch of {len(ids)} units has {name} of shape {tensor.shape}")
    return ReplaySample(
        batch_id=head.batch_id,
        ids=ids,
        probabilities=probabilities,
        row_of=row_of,
        rows=head.rows,
        tensors=tensors,
        num_open=head.num_open,
        inserted_steps=head.inserted_steps,
        episodes=tuple(EpisodeEnd(*row) for row in head.episodes),
    )


def _open(view: memoryview) -> tuple[SampleHead, memoryview]:
    if bytes(view[: len(MAGIC)]) != MAGIC or len(view) < _PREFIX_BYTES:
        raise RecordError(
            "A sampled batch does not begin as one", fix="check that the store speaks this protocol version"
        )
    if digest_of(view[_DIGEST_STOP:]) != bytes(view[len(MAGIC) : _DIGEST_STOP]):
        raise RecordError("A sampled batch does not match its digest", why="its bytes changed on the way")
    (head_size,) = _LENGTH.unpack_from(view, _DIGEST_STOP)
    stop = _PREFIX_BYTES + head_size
    if stop > len(view):
        raise RecordError(f"A sampled batch's head claims {head_size} bytes, the frame has {len(view)}")
    try:
        head = _decoder.decode(view[_PREFIX_BYTES:stop])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError("A sampled batch's head cannot be parsed", why=str(error)) from error
    payload = view[min(stop + -stop % ALIGNMENT_BYTES, len(view)) :]
    if len(payload) != head.payload_size:
        raise RecordError(
            f"A sampled batch contains {len(payload)} payload bytes, its head declares {head.payload_size}"
        )
    return head, payload


def _tensor(tensor: SampledTensor, payload: memoryview) -> Array:
    dtype = DTYPES.get(tensor.dtype)
    shape = tensor.shape
    if dtype is None or len(shape) > TENSOR_RANK_MAX or min(shape, default=0) < 0 or tensor.offset < 0:
        raise RecordError(
            f"Tensor {tensor.name!r} of a sampled batch has type {tensor.dtype!r} and shape {shape}"
        )
    if tensor.offset + math.prod(shape) * dtype.itemsize > len(payload):
        raise RecordError(f"Tensor {tensor.name!r} of a sampled batch is longer than its payload")
    try:
        return np.ndarray(shape, dtype, payload, tensor.offset)
    except (ValueError, TypeError) as error:  # empty, at an offset or with dimensions that no array has
        raise RecordError(f"Tensor {tensor.name!r} of a sampled batch has the shape {shape}") from error


def _whole(tensors: dict[str, Array], name: str, dtype: type[np.generic]) -> NDArray[Any]:
    """A tensor of the frame itself, with one value for each unit."""
    found = tensors.pop(name, None)
    if found is None or found.dtype != dtype or found.ndim != 1:
        raise RecordError(f"A sampled batch has no {name} of {dtype.__name__}")
    return found


def _decode_image(image: SampledImage, tensors: dict[str, Array], *, num_units: int) -> dict[str, Array]:
    """The tensors of an image: with several names (B, stack, ...) each, with one (B, M, stack, ...).

    The frame of an image that is no stack has the image's own shape (``algorithms.frame_stacks``).
    """
    name = image.names[0] if image.names else ""
    parts = [tensors.pop(f"{name}/{part}", None) for part in _IMAGE_PARTS]
    blocks, sizes, counts, frames = (part if part is not None else _EMPTY for part in parts)
    _check_image(image, blocks, sizes, counts, frames, num_units=num_units)
    num_shown = int(np.size(frames, 1))
    shown = np.empty((num_shown, num_units, image.stack, math.prod(image.frame_shape)), np.uint8)
    # Sorted by block, so that each is decompressed once. A stack's frames mostly follow each other in a block as well:
    # each run of them is one copy.
    wanted = frames.swapaxes(0, 1).reshape(-1).astype(np.int64)
    stops = np.cumsum(counts, dtype=np.int64)
    block_of = np.searchsorted(stops, wanted, side="right")
    order = np.argsort(block_of, kind="stable")
    runs = _runs(order, wanted[order], block_of[order])
    of_block = np.searchsorted(runs.blocks, np.arange(len(counts) + 1)).tolist()
    places, firsts, lengths = (numbers.tolist() for numbers in (runs.places, runs.frames, runs.lengths))
    frame_bytes = shown.shape[-1]
    target = shown.reshape(-1).data
    start, first_frame = 0, 0
    for index, (size, count) in enumerate(zip(sizes.tolist(), counts.tolist(), strict=True)):
        content = memoryview(
            decompress(blocks.data[start : start + size], content_bytes=count * frame_bytes, name=name)
        )
        for run in range(of_block[index], of_block[index + 1]):
            place, source = places[run] * frame_bytes, (firsts[run] - first_frame) * frame_bytes
            num_bytes = lengths[run] * frame_bytes
            target[place : place + num_bytes] = content[source : source + num_bytes]
        start, first_frame = start + size, first_frame + count
    stack = (image.stack,) if image.stack > 1 else ()
    shaped = shown.reshape(num_shown, num_units, *stack, *image.frame_shape)
    if len(image.names) == 1:
        return {name: shaped.swapaxes(0, 1)}
    return {name: shaped[index] for index, name in enumerate(image.names)}


class _Runs(NamedTuple):
    """Runs of frames that follow each other in a block and in what is shown: block, place, first frame and length."""

    blocks: NDArray[np.int64]
    places: NDArray[np.int64]
    frames: NDArray[np.int64]
    lengths: NDArray[np.int64]


def _runs(places: NDArray[np.int64], frames: NDArray[np.int64], blocks: NDArray[np.int64]) -> _Runs:
    """The runs of frames that are ordered by block, then by place."""
    goes_on = (np.diff(places) == 1) & (np.diff(frames) == 1) & (np.diff(blocks) == 0)
    starts = np.flatnonzero(np.concatenate(([True], ~goes_on)) if len(places) else places)
    lengths = np.diff(np.append(starts, len(places)))
    return _Runs(blocks[starts], places[starts], frames[starts], lengths)


def _check_image(
    image: SampledImage, blocks: Array, sizes: Array, counts: Array, frames: Array, *, num_units: int
) -> None:
    """Check that an image's parts agree, before anything is allocated for it."""
    frame_bytes = math.prod(image.frame_shape)
    is_sound = (
        len(image.names) >= 1
        and image.stack >= 1
        and min(image.frame_shape, default=1) >= 1
        and blocks.dtype == np.uint8
        and {sizes.dtype, counts.dtype, frames.dtype} == {np.dtype(np.int32)}
        and blocks.ndim == sizes.ndim == counts.ndim == 1
        and len(sizes) == len(counts)
        and frames.ndim == 3
        and frames.shape[0] == num_units
        and frames.shape[2] == image.stack
        and (len(image.names) == 1 or frames.shape[1] == len(image.names))
        and int(sizes.sum(dtype=np.int64)) == len(blocks)
        and min(sizes.min(initial=1), counts.min(initial=1)) >= 1
        and bool((counts.astype(np.float64) * frame_bytes <= LZ4_RATIO_MAX * sizes.astype(np.float64)).all())
        and (not frames.size or 0 <= int(frames.min()) <= int(frames.max()) < int(counts.sum(dtype=np.int64)))
        and frames.size * frame_bytes <= CONTENT_BYTES_MAX
    )
    if not is_sound:
        raise RecordError(f"A sampled batch has an image {image.names} whose blocks and frames do not agree")


_EMPTY = np.empty(0, np.uint8)
_IMAGE_PARTS = ("blocks", "block_sizes", "block_frames", "frames")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SampleHead)
