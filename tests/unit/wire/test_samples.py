import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import RecordError
from tidegate.core.ids import LineageName, TrajectoryId
from tidegate.wire.digest import digest_of
from tidegate.wire.samples import (
    IDS,
    MAGIC,
    PROBABILITIES,
    ROW_OF,
    ImageToSend,
    SampledImage,
    SampledRow,
    SampleHead,
    decode_sample,
    encode_sample,
)

ROW = SampledRow(TrajectoryId("t-1.0"), ((LineageName("0-a"), 3, 0, 4),), 5.0, 2.0, is_unused=True)
HEAD = SampleHead("b", 9, 70, [ROW], [(1.5, 3, 2)], [], [], 0)


def frame_of(**tensors: np.ndarray) -> bytes:
    own = {
        IDS: np.array([7, 8, 7], np.int64),
        PROBABILITIES: np.array([0.5, 0.25, 0.5]),
        ROW_OF: np.zeros(3, np.int64),
    }
    return encode_sample(HEAD, own | tensors, [image()])


def image() -> ImageToSend:
    frames = np.arange(11 * 6, dtype=np.uint8).reshape(11, 2, 3)
    blocks = [bytes(_block(frames[start : start + 8])) for start in (0, 8)]
    return ImageToSend(
        image=SampledImage(("x", "next.x"), (2, 3), 2),
        blocks=blocks,
        block_frames=np.array([8, 3], np.int32),
        frames=np.array([[[0, 1], [3, 4]], [[7, 8], [9, 10]], [[0, 1], [3, 4]]], np.int32),
    )


def _block(frames: np.ndarray) -> bytes:
    return lz4.block.compress(np.ascontiguousarray(frames).data, store_size=False)


def test_batch_comes_back_as_it_was_drawn() -> None:
    batch = decode_sample(frame_of(rewards=np.arange(6, dtype=np.float32).reshape(3, 2)))
    assert (batch.batch_id, batch.num_open, batch.inserted_steps) == ("b", 9, 70)
    assert batch.ids.tolist() == [7, 8, 7]
    assert batch.probabilities.tolist() == [0.5, 0.25, 0.5]
    assert batch.rows == [ROW]
    assert batch.rows[0].version_spans()[0].version.step == 3
    assert batch.tensors["rewards"].tolist() == [[0, 1], [2, 3], [4, 5]]
    frames = np.arange(66, dtype=np.uint8).reshape(11, 2, 3)
    np.testing.assert_array_equal(batch.tensors["x"], frames[[[0, 1], [7, 8], [0, 1]]])
    np.testing.assert_array_equal(batch.tensors["next.x"], frames[[[3, 4], [9, 10], [3, 4]]])


@given(position=st.integers(0, 2000), value=st.integers(0, 255), fixes_digest=st.booleans())
def test_changed_bytes_give_a_batch_or_a_record_error(
    position: int, value: int, *, fixes_digest: bool
) -> None:
    data = bytearray(frame_of())
    data[position % len(data)] = value
    if fixes_digest:
        data[4:20] = digest_of(bytes(data[20:]))
    try:
        decode_sample(bytes(data))
    except RecordError:
        return


@given(data=st.binary(max_size=64))
def test_any_bytes_give_a_record_error(data: bytes) -> None:
    with pytest.raises(RecordError):
        decode_sample(MAGIC + data)
