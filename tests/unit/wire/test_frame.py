import struct
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import example, given
from numpy.typing import NDArray

from tests.unit.wire.strategies import TRAJECTORIES, assert_same
from tidegate.core.errors import RecordError
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, TrajectoryId
from tidegate.core.records import Trajectory, VersionSpan
from tidegate.wire.columns import RecordColumns, columns_of
from tidegate.wire.digest import DIGEST_BYTES, digest_of
from tidegate.wire.frame import (
    HEAD_BYTES_MAX,
    MAGIC,
    FrameHead,
    decode_frame,
    decode_provenance,
    encode_frame,
    encode_with_digest,
    open_frame,
    provenance_of,
    verify_frame,
)
from tidegate.wire.layout import ALIGNMENT_BYTES, TensorColumn

PREFIX_BYTES = len(MAGIC) + 4 + DIGEST_BYTES
SIZES = [-(2**63), -1, 0, 1, 2, 4, 2**31, 2**62, 2**63 - 1]


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


def sealed(head: bytes, payload: bytes = b"") -> bytes:
    """A frame with any head, whose digest is right."""
    body = head + bytes(-(PREFIX_BYTES + len(head)) % ALIGNMENT_BYTES) + payload
    body = struct.pack("<I", len(head)) + body
    return MAGIC + digest_of(body) + body


def frame_with(column: TensorColumn, payload: bytes = b"", *, num_records: int = 1) -> bytes:
    """A frame whose head describes ``column``, independent of the payload."""
    records = [renamed(make(), f"t-1.{index}") for index in range(num_records)]
    return sealed(head_of(columns_of(records), [column], payload_size=len(payload)), payload)


def head_of(columns: RecordColumns, tensors: list[TensorColumn], *, payload_size: int) -> bytes:
    raw = msgspec.Raw(msgspec.msgpack.encode(tensors))
    return msgspec.msgpack.encode(FrameHead(columns=columns, tensors=raw, payload_size=payload_size))


def renamed(trajectory: Trajectory, name: str) -> Trajectory:
    return msgspec.structs.replace(trajectory, trajectory_id=TrajectoryId(name))


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


@given(trajectories=st.lists(TRAJECTORIES, min_size=1, max_size=3))
def test_digest_of_what_an_actor_made_is_that_of_the_frame_it_sent(trajectories: list[Trajectory]) -> None:
    frame, digest = encode_with_digest(trajectories)
    assert frame == encode_frame(trajectories)
    assert open_frame(frame).content_digest() == digest
    scored = [msgspec.structs.replace(each, reward=1.0, verifier_log="right") for each in trajectories]
    assert open_frame(encode_frame(scored)).content_digest() == digest
    other = renamed(trajectories[0], "another.0")
    assert open_frame(encode_frame([other, *trajectories[1:]])).content_digest() != digest


@pytest.mark.parametrize(
    "payload_bytes", [0, 1, 600, 1024, 3000, 15_000, 16_000, 16_384, 60_000, 65_000, 65_536, 200_000]
)
def test_digest_is_blake3_of_payload_zeros_description_and_sizes(payload_bytes: int) -> None:
    frame = open_frame(encode_frame([make()]))
    payload = bytes(index % 251 for index in range(payload_bytes))
    identity = msgspec.msgpack.encode((frame.columns.trajectory_id, frame.columns.spans))
    sizes = struct.pack("<QQ", payload_bytes, len(frame.tensors))
    description = bytes(frame.tensors) + identity + sizes
    # As many zeros as make whole chunks of 1 KiB, their number a power of two up to 16, or whole 16 KiB beyond.
    size = payload_bytes + len(description)
    unit = next(unit for unit in (1024, 2048, 4096, 8192, 16_384) if unit == 16_384 or size <= unit)
    zeros = bytes(-size % unit) if size <= 65_536 else b""
    expected = blake3(payload + zeros + description).digest()
    assert msgspec.structs.replace(frame, payload=memoryview(payload)).content_digest() == expected


def test_zeros_behind_a_payload_change_its_digest() -> None:
    frame = open_frame(encode_frame([make()]))
    longer = [
        msgspec.structs.replace(frame, payload=memoryview(bytes(frame.payload) + bytes(number)))
        for number in range(70)
    ]
    assert len({each.content_digest() for each in longer}) == len(longer)


@given(data=st.binary(max_size=300))
@example(data=b"")
@example(data=MAGIC)
@example(data=bytes(DIGEST_BYTES) + struct.pack("<I", 2**32 - 1))
@example(data=bytes(DIGEST_BYTES) + struct.pack("<I", 0))
@example(data=sealed(b""))
def test_any_bytes_give_records_or_a_record_error(data: bytes) -> None:
    for candidate in (data, MAGIC + data, sealed(data)):
        try:
            decode_frame(candidate)
        except RecordError:
            continue


@given(trajectory=TRAJECTORIES, data=st.data())
def test_mutated_frame_gives_records_or_a_record_error(trajectory: Trajectory, data: st.DataObject) -> None:
    frame = bytearray(encode_frame([trajectory]))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    # Once as it is, and once under a recomputed digest.
    behind = bytes(frame[len(MAGIC) + DIGEST_BYTES :])
    for mutated in (bytes(frame), bytes(frame[: len(MAGIC)]) + digest_of(behind) + behind):
        try:
            decode_frame(mutated)
            decode_provenance(provenance_of(mutated))
        except RecordError:
            continue


@given(
    shape=st.lists(st.sampled_from(SIZES), max_size=8).map(tuple),
    rows=st.lists(st.sampled_from(SIZES), max_size=3),
    records=st.lists(st.sampled_from([-1, 0, 1, 2, 2**62]), max_size=3),
    dtype=st.sampled_from(["f4", "i8", "b1", "O", "f4,f4", "", "U3", "V0"]),
    offset=st.sampled_from([-64, 0, 1, 64, 2**32, 2**63 - 1]),
    num_records=st.integers(1, 3),
)
@example(shape=(2**62, 2**62), rows=[0], records=[], dtype="f4", offset=0, num_records=1)
@example(shape=(-1,), rows=[0], records=[], dtype="f4", offset=0, num_records=1)
@example(shape=(), rows=[1, -1, 1], records=[], dtype="f4", offset=0, num_records=3)
@example(shape=(), rows=[], records=[1], dtype="f4", offset=0, num_records=3)
@example(shape=(), rows=[2, 3], records=[0, 2], dtype="f4", offset=0, num_records=3)
def test_head_with_wrong_tensor_metadata_gives_a_record_or_a_record_error(
    shape: tuple[int, ...],
    rows: list[int],
    records: list[int],
    dtype: str,
    offset: int,
    num_records: int,
) -> None:
    column = TensorColumn("x", dtype, offset, shape, rows, records)
    for payload in (b"", bytes(64)):
        try:
            decoded = decode_frame(frame_with(column, payload, num_records=num_records))
        except RecordError:
            continue
        owners = [decoded[index] for index in records] if records else decoded
        assert sum(len(trajectory.tensors) for trajectory in decoded) == len(owners)
        for position, owner in enumerate(owners):
            own_rows = rows[position if len(rows) > 1 else 0 :][:1]
            assert owner.tensors["x"].shape == (*own_rows, *shape)


@given(data=st.binary(max_size=60), payload=st.binary(max_size=80))
def test_any_head_under_a_right_digest_gives_records_or_a_record_error(data: bytes, payload: bytes) -> None:
    good = msgspec.msgpack.decode(provenance_of(encode_frame([make()])))
    for head in (data, msgspec.msgpack.encode([data]), msgspec.msgpack.encode([good[0], [], len(payload)])):
        try:
            decode_frame(sealed(head, payload))
        except RecordError:
            continue


@pytest.mark.parametrize("field", [name for name in Trajectory.__struct_fields__ if name != "tensors"])
def test_column_of_another_length_than_there_are_records_is_refused(field: str) -> None:
    columns = columns_of([renamed(make(), f"t-1.{index}") for index in range(3)])
    for length in (0, 2, 4):
        if (field, length) == ("trajectory_id", 4):
            continue  # then there are four records, and all other columns are shared
        values = (getattr(columns, field) * 4)[:length]
        if field == "trajectory_id" and length == 2:
            continue
        lying = msgspec.structs.replace(columns, **{field: values})
        with pytest.raises(RecordError, match=f"{field}|no trajectory"):
            decode_frame(sealed(head_of(lying, [], payload_size=0)))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**31, "seven", None, 1.5])
def test_number_that_no_ledger_column_can_hold_is_refused(value: object) -> None:
    group_size = RecordColumns.__struct_fields__.index("group_size")
    [columns, *rest] = msgspec.msgpack.decode(provenance_of(encode_frame([make()])))
    columns[group_size] = [value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return  # MessagePack has no such number
    with pytest.raises(RecordError, match="cannot be parsed"):
        decode_frame(sealed(msgspec.msgpack.encode([columns, *rest])))


def test_what_a_group_shares_is_written_once() -> None:
    prompt = "x" * 1000
    group = [
        msgspec.structs.replace(renamed(make(x=np.ones(4, np.float32)), f"t-1.{index}"), prompt=prompt)
        for index in range(16)
    ]
    frame = encode_frame(group)
    assert frame.count(prompt.encode()) == 1
    assert len(frame) < len(encode_frame(group[:1])) + 16 * (4 * 4 + 20)


@pytest.mark.parametrize("width", [4, 5000])
def test_tensors_of_a_group_are_views_of_one_column(width: int) -> None:
    group = [renamed(make(x=np.full((rows, width), rows, np.float32)), f"t-1.{rows}") for rows in (3, 0, 2)]
    frame = open_frame(encode_frame(group))
    [place] = frame.layout.places
    assert place.values(frame.payload).shape == (5, width)
    for sent, came in zip(group, decode_frame(encode_frame(group)), strict=True):
        np.testing.assert_array_equal(came.tensors["x"], sent.tensors["x"])


def test_records_whose_tensors_differ_in_kind_share_a_frame() -> None:
    group = [
        renamed(make(x=np.zeros(3, np.float32), y=np.ones((), np.int64)), "t-1.0"),
        renamed(make(x=np.zeros((3, 2), np.float32)), "t-1.1"),
        renamed(make(x=np.zeros(5, np.int32), y=np.full((), 7, np.int64)), "t-1.2"),
    ]
    for sent, came in zip(group, decode_frame(encode_frame(group)), strict=True):
        assert_same(sent, came)


def test_every_prefix_of_a_frame_is_refused() -> None:
    frame = encode_frame([make(x=np.arange(40, dtype=np.float32))])
    for stop in range(len(frame)):
        with pytest.raises(RecordError):
            decode_frame(frame[:stop])


def test_frame_with_bytes_behind_it_is_refused() -> None:
    with pytest.raises(RecordError, match="declares"):
        decode_frame(encode_frame([make(x=np.zeros(4, np.float32))]) + b"\0")


def test_any_changed_byte_is_found() -> None:
    frame = encode_frame([make(x=np.arange(16, dtype=np.float32))])
    for position in range(len(frame)):
        changed = bytearray(frame)
        changed[position] ^= 1
        with pytest.raises(RecordError):
            decode_frame(bytes(changed))
        with pytest.raises(RecordError):
            verify_frame(bytes(changed))
    verify_frame(frame)


def test_changed_tensor_byte_is_found_by_the_digest() -> None:
    frame = bytearray(encode_frame([make(x=np.arange(16, dtype=np.float32))]))
    frame[-1] ^= 1
    with pytest.raises(RecordError, match="digest"):
        decode_frame(bytes(frame))


def test_frame_without_a_trajectory_is_refused() -> None:
    with pytest.raises(RecordError, match="no trajectory"):
        decode_frame(encode_frame([]))


def test_head_beyond_its_bound_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(RecordError, match="claims"):
        decode_frame(
            MAGIC + bytes(DIGEST_BYTES) + struct.pack("<I", HEAD_BYTES_MAX + 1) + bytes(HEAD_BYTES_MAX + 1)
        )


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
