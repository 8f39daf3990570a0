import struct
from typing import Any

import hypothesis.strategies as st
import lz4.block
import msgspec
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from tests.unit.wire.strategies import assert_same
from tidegate.core.errors import RecordError
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, TrajectoryId
from tidegate.core.records import Trajectory, VersionSpan
from tidegate.wire.columns import columns_of
from tidegate.wire.compression import CONTENT_BYTES_MAX, LZ4_RATIO_MAX
from tidegate.wire.digest import DIGEST_BYTES, digest_of
from tidegate.wire.frame import MAGIC, FrameHead, decode_frame, encode_frame, open_frame
from tidegate.wire.layout import ALIGNMENT_BYTES, TensorColumn
from tidegate.wire.validate import validate_frame, validate_trajectory

SHAPE = (20, 40, 40)
CONTENT_BYTES = 20 * 40 * 40


T, N = 4, 2


def make(index: int = 0, **tensors: NDArray[Any]) -> Trajectory:
    return Trajectory(
        trajectory_id=TrajectoryId(f"t-1.{index}"),
        run_id=RunId("run-1"),
        task_id=TaskId("t-1"),
        group_id=GroupId("t-1"),
        group_size=1,
        spans=(VersionSpan(PolicyVersion(LineageName("0-aaaa"), 3), 0, T),),
        tensors=tensors,
        num_steps=T,
    )


def frame_with(columns: list[TensorColumn], payload: bytes) -> bytes:
    """A frame of one record whose head describes any columns, under the right digest."""
    head = msgspec.msgpack.encode(
        FrameHead(columns_of([make()]), msgspec.Raw(msgspec.msgpack.encode(columns)), len(payload))
    )
    start = len(MAGIC) + DIGEST_BYTES + 4 + len(head)
    body = struct.pack("<I", len(head)) + head + bytes(-start % ALIGNMENT_BYTES) + payload
    return MAGIC + digest_of(body) + body


def still_images(shape: tuple[int, ...] = SHAPE) -> NDArray[np.uint8]:
    """Images that change in one pixel from row to row."""
    images = np.zeros(shape, np.uint8)
    images.reshape(len(images), -1)[np.arange(len(images)), np.arange(len(images))] = 200
    return images


def noise(shape: tuple[int, ...] = SHAPE) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def block_column(block: bytes, **changes: Any) -> TensorColumn:
    column = TensorColumn("x", "u1", 0, SHAPE[1:], [SHAPE[0]], [], "lz4", len(block))
    return msgspec.structs.replace(column, **changes)


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 30),
    density=st.sampled_from([0.0, 0.001, 0.05, 1.0]),
)
def test_images_come_back_as_they_were_sent(seed: int, rows: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    images = (rng.integers(0, 256, (rows, 40, 40)) * (rng.random((rows, 40, 40)) < density)).astype(np.uint8)
    sent = make(frames=images, rewards=rng.standard_normal(7).astype(np.float32))
    [came] = decode_frame(encode_frame([sent]))
    assert_same(sent, came)
    assert not came.tensors["frames"].flags.writeable


def test_images_are_sent_as_a_block() -> None:
    images = still_images()
    frame = encode_frame([make(frames=images)])
    assert len(frame) < images.nbytes / 10
    [place] = open_frame(frame).layout.places
    assert place.stored_bytes is not None


@pytest.mark.parametrize(
    "tensor",
    [noise(), still_images()[:2], still_images().reshape(20, -1), still_images().astype(np.int16)],
    ids=["incompressible", "small", "flags", "numbers"],
)
def test_other_tensors_are_sent_as_raw_bytes(tensor: NDArray[Any]) -> None:
    frame = open_frame(encode_frame([make(x=tensor)]))
    assert [place.stored_bytes for place in frame.layout.places] == [None]
    assert frame.decompressed == {}


def test_records_of_a_group_are_sent_as_raw_bytes() -> None:
    group = [make(index, x=still_images()) for index in range(2)]
    for sent, came in zip(group, decode_frame(encode_frame(group)), strict=True):
        assert_same(sent, came)


def test_frame_of_a_sender_without_compression_is_read() -> None:
    images = still_images()
    six_fields = msgspec.msgpack.encode([("x", "u1", 0, SHAPE[1:], [SHAPE[0]], [])])
    columns = msgspec.msgpack.decode(six_fields, type=list[TensorColumn])
    [came] = decode_frame(frame_with(columns, images.tobytes()))
    np.testing.assert_array_equal(came.tensors["x"], images)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codec": "zstd"}, "unknown codec 'zstd'"),
        ({"codec": ""}, "has a block of"),
        ({"stored_bytes": 0}, "has a block of 0"),
        ({"stored_bytes": -1}, "has a block of -1"),
        ({"stored_bytes": 1 << 40}, "ends at byte"),
        ({"shape": (40, 41)}, "decompresses to 32000 bytes, not to 32800"),
        ({"shape": (40, 39)}, "cannot be decompressed to 31200 bytes"),
        ({"shape": (1 << 20, 1 << 20)}, f"compresses by at most {LZ4_RATIO_MAX}"),
        ({"rows": [0]}, "claims 0 bytes"),
        ({"offset": 7}, "ends at byte"),
        ({"offset": 7, "stored_bytes": 20}, "claims|cannot be decompressed|decompresses to"),
    ],
)
def test_block_that_is_not_what_it_claims_is_refused(changes: dict[str, Any], message: str) -> None:
    block = lz4.block.compress(still_images().data, store_size=False)
    assert decode_frame(frame_with([block_column(block)], block))
    with pytest.raises(RecordError, match=message):
        decode_frame(frame_with([block_column(block, **changes)], block))


@given(data=st.binary(min_size=CONTENT_BYTES // LZ4_RATIO_MAX + 1, max_size=400))
def test_any_bytes_as_a_block_give_a_record_or_a_record_error(data: bytes) -> None:
    try:
        [came] = decode_frame(frame_with([block_column(data)], data))
    except RecordError:
        return
    assert came.tensors["x"].shape == SHAPE


def test_blocks_of_more_content_than_a_reader_allocates_are_refused_before_they_are_opened() -> None:
    # The block is not LZ4 at all: its size is judged first.
    data = bytes(1 << 17)
    rows = CONTENT_BYTES_MAX // (4096 * 64)
    columns = [
        TensorColumn(f"x{index}", "u1", 0, (4096,), [rows], [], "lz4", len(data)) for index in range(65)
    ]
    with pytest.raises(RecordError, match="cannot be decompressed"):
        decode_frame(frame_with(columns[:64], data))
    with pytest.raises(RecordError, match="blocks claim"):
        decode_frame(frame_with(columns, data))


def test_digest_is_of_the_bytes_that_are_sent() -> None:
    frame = bytearray(encode_frame([make(frames=still_images())]))
    frame[-70] ^= 1
    with pytest.raises(RecordError, match="digest"):
        decode_frame(bytes(frame))


def test_segment_with_images_passes_validation() -> None:
    trajectory = make(
        observations=still_images((T + 1, N, 60, 60)),
        behavior_logprobs=np.full((T, N), -0.7, np.float32),
        rewards=np.ones((T, N), np.float32),
    )
    frame = open_frame(encode_frame([trajectory]))
    assert frame.decompressed
    validate_frame(frame, run_id="run-1")
    validate_trajectory(trajectory, run_id="run-1")
    trajectory.tensors["rewards"][0, 0] = np.nan
    with pytest.raises(RecordError, match="rewards"):
        validate_frame(open_frame(encode_frame([trajectory])), run_id="run-1")
