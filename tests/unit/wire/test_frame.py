import struct
import zlib
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given
from numpy.typing import NDArray

from tests.unit.wire.strategies import TRAJECTORIES, assert_same
from tidegate.core.errors import RecordError
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, TrajectoryId
from tidegate.core.records import Trajectory, VersionSpan
from tidegate.v1 import trajectory_pb2
from tidegate.wire.frame import (
    ALIGNMENT_BYTES,
    HEAD_BYTES_MAX,
    MAGIC,
    decode_frame,
    decode_provenance,
    encode_frame,
    provenance_of,
)


def make(**tensors: NDArray[Any]) -> Trajectory:
    return Trajectory(
        trajectory_id=TrajectoryId("t-1.0"),
        run_id=RunId("run-1"),
        task_id=TaskId("t-1"),
        group_id=GroupId("t-1"),
        group_size=1,
        spans=(VersionSpan(PolicyVersion(LineageName("0-aaaa"), 3), 0, 4),),
        tensors=tensors,
        num_steps=4,
    )


def frame_with(spec: trajectory_pb2.TensorSpec, payload: bytes = b"") -> bytes:
    """A frame whose head says what ``spec`` says, whatever the payload holds."""
    envelope = trajectory_pb2.TrajectoryEnvelope(trajectory_id="t-1.0", tensors=[spec])
    head = trajectory_pb2.TrajectoryFrame(
        trajectories=[envelope], payload_size=len(payload)
    ).SerializeToString()
    prefix = MAGIC + struct.pack("<I", len(head)) + head
    return prefix + bytes(-len(prefix) % ALIGNMENT_BYTES) + payload


@given(trajectories=st.lists(TRAJECTORIES, min_size=1, max_size=3))
def test_every_record_comes_back_as_it_was_sent(trajectories: list[Trajectory]) -> None:
    decoded = decode_frame(encode_frame(trajectories))
    assert len(decoded) == len(trajectories)
    for ours, theirs in zip(trajectories, decoded, strict=True):
        assert_same(ours, theirs)


@given(trajectories=st.lists(TRAJECTORIES, min_size=1, max_size=3))
def test_provenance_is_the_record_without_its_tensors(trajectories: list[Trajectory]) -> None:
    decoded = decode_provenance(provenance_of(encode_frame(trajectories)))
    for ours, theirs in zip(trajectories, decoded, strict=True):
        assert_same(ours, theirs, with_tensors=False)


@given(data=st.binary(max_size=300))
@example(data=b"")
@example(data=MAGIC)
@example(data=MAGIC + struct.pack("<I", 2**32 - 1))
@example(data=MAGIC + struct.pack("<I", 0))
def test_any_bytes_give_records_or_a_record_error(data: bytes) -> None:
    for candidate in (data, MAGIC + data, MAGIC + struct.pack("<I", len(data)) + data):
        try:
            decode_frame(candidate)
        except RecordError:
            continue


@given(trajectory=TRAJECTORIES, data=st.data())
def test_mutated_frame_gives_records_or_a_record_error(trajectory: Trajectory, data: st.DataObject) -> None:
    frame = bytearray(encode_frame([trajectory]))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_frame(bytes(frame))
        decode_provenance(provenance_of(bytes(frame)))
    except RecordError:
        return


@given(
    shape=st.lists(st.sampled_from([-(2**63), -1, 0, 1, 2, 4, 2**31, 2**62, 2**63 - 1]), max_size=9),
    dtype=st.sampled_from(["f4", "i8", "b1", "O", "f4,f4", "", "U3", "V0"]),
    offset=st.sampled_from([0, 1, 64, 2**32, 2**64 - 1]),
)
@example(shape=[0, 2**62, 2**62], dtype="f4", offset=0)
@example(shape=[0, -1], dtype="f4", offset=0)
def test_head_that_lies_about_a_tensor_gives_a_record_or_a_record_error(
    shape: list[int], dtype: str, offset: int
) -> None:
    spec = trajectory_pb2.TensorSpec(
        name="x", dtype=dtype, shape=shape, offset=offset, checksum=zlib.crc32(b"")
    )
    for payload in (b"", bytes(64)):
        try:
            [trajectory] = decode_frame(frame_with(spec, payload))
        except RecordError:
            continue
        assert trajectory.tensors["x"].shape == tuple(shape)


def test_every_prefix_of_a_frame_is_refused() -> None:
    frame = encode_frame([make(x=np.arange(40, dtype=np.float32))])
    for stop in range(len(frame)):
        with pytest.raises(RecordError):
            decode_frame(frame[:stop])


def test_frame_with_bytes_behind_it_is_refused() -> None:
    with pytest.raises(RecordError, match="promises"):
        decode_frame(encode_frame([make(x=np.zeros(4, np.float32))]) + b"\0")


def test_changed_tensor_byte_is_found_by_its_checksum() -> None:
    frame = bytearray(encode_frame([make(x=np.arange(16, dtype=np.float32))]))
    frame[-1] ^= 1
    with pytest.raises(RecordError, match="checksum"):
        decode_frame(bytes(frame))


def test_frame_without_a_trajectory_is_refused() -> None:
    with pytest.raises(RecordError, match="no trajectory"):
        decode_frame(encode_frame([]))


def test_head_beyond_its_bound_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(RecordError, match="claims"):
        decode_frame(MAGIC + struct.pack("<I", HEAD_BYTES_MAX + 1) + bytes(HEAD_BYTES_MAX + 1))


def test_tensor_of_a_dtype_that_does_not_travel_is_refused_at_the_sender() -> None:
    with pytest.raises(RecordError, match="complex64"):
        encode_frame([make(x=np.zeros(2, np.complex64))])


def test_tensors_are_views_into_the_message_at_aligned_places() -> None:
    frame = encode_frame([make(x=np.zeros(3, np.float32), y=np.ones(5, np.int64))])
    base = np.frombuffer(frame, np.uint8).__array_interface__["data"][0]
    [trajectory] = decode_frame(frame)
    for tensor in trajectory.tensors.values():
        offset = tensor.__array_interface__["data"][0] - base
        assert 0 < offset < len(frame)
        assert offset % ALIGNMENT_BYTES == 0
        assert not tensor.flags.writeable


def test_big_endian_and_strided_tensors_arrive_as_plain_ones() -> None:
    sent = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    [trajectory] = decode_frame(encode_frame([make(x=sent)]))
    assert trajectory.tensors["x"].dtype == np.dtype("<f4")
    np.testing.assert_array_equal(trajectory.tensors["x"], sent)
