from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from numpy.typing import NDArray

from tests.unit.wire.strategies import tensors
from tidegate.core.errors import CorruptionError, RecordError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.v1 import policy_pb2
from tidegate.wire.announcement import Announcement
from tidegate.wire.digest import digest_of
from tidegate.wire.policy_payload import announce, tensors_of

VERSION = PolicyVersion(LineageName("0-aaaa"), 3)
TREE = LineageTree().add(Lineage(name=LineageName("0-aaaa")))
TRACE_PARENT = f"00-{'1' * 32}-{'2' * 16}-01"


def snapshot(**named: NDArray[Any]) -> PolicySnapshot:
    return PolicySnapshot(VERSION, named, published_at_s=5.0)


@given(named=st.dictionaries(st.text(max_size=8), tensors(), max_size=4))
def test_policy_comes_back_as_it_was_announced(named: dict[str, NDArray[Any]]) -> None:
    message, raw = announce(PolicySnapshot(VERSION, named), TREE)
    assert message.payload_size == sum(len(chunk) for chunk in raw)
    back = tensors_of(message.tensors, b"".join(raw))
    assert list(back) == list(named)
    for name, tensor in named.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        assert back[name].tobytes() == tensor.tobytes()


def test_what_its_adapters_are_of_travels_with_the_announcement() -> None:
    offered = msgspec.structs.replace(snapshot(w=np.ones(3, np.float32)), base_digest="ab" * 16)
    message, raw = announce(offered, TREE)
    message.inline_payload = b"".join(raw)
    back = Announcement.from_bytes(message.SerializeToString()).inline_snapshot()
    assert back is not None
    assert (back.version, back.published_at_s, back.base_digest) == (VERSION, 5.0, "ab" * 16)


def test_same_tensors_have_the_same_digest_whatever_their_version() -> None:
    first, _ = announce(snapshot(w=np.ones(3, np.float32)), TREE)
    later, _ = announce(
        PolicySnapshot(PolicyVersion(LineageName("0-aaaa"), 9), {"w": np.ones(3, np.float32)}), TREE
    )
    other, _ = announce(snapshot(w=np.zeros(3, np.float32)), TREE)
    assert first.digest == later.digest != other.digest


def test_changed_byte_is_found_by_its_digest() -> None:
    message, raw = announce(snapshot(w=np.ones(3, np.float32)), TREE)
    with pytest.raises(CorruptionError, match="digest"):
        tensors_of(message.tensors, bytes([raw[0][0] ^ 1]) + raw[0][1:])


def test_truncated_payload_is_refused() -> None:
    message, raw = announce(snapshot(w=np.ones(3, np.float32)), TREE)
    with pytest.raises(RecordError, match="truncated"):
        tensors_of(message.tensors, raw[0][:-1])


@given(
    dtype=st.sampled_from(["O", "f4", "f4,f4", "V8", "U2", "M8[s]", "", "garbage", "(2,", "f3"])
    | st.text(max_size=5),
    shape=st.lists(st.sampled_from([-2, -1, 0, 1, 2, 2**62, 2**63 - 1]), max_size=4),
)
@example(dtype="O", shape=[1])
@example(dtype="f4", shape=[-1, -2])
@example(dtype="f4", shape=[0, 2**62, 2**62])
def test_manifest_with_wrong_tensor_metadata_gives_tensors_or_a_record_error(
    dtype: str, shape: list[int]
) -> None:
    for raw in (b"", bytes(8)):
        entry = policy_pb2.TensorEntry(
            name="w", dtype=dtype, shape=shape, size=len(raw), digest=digest_of(raw)
        )
        try:
            back = tensors_of([entry], raw)
        except RecordError:
            continue
        assert back["w"].shape == tuple(shape)


def test_small_policy_travels_inside_of_its_announcement() -> None:
    message, raw = announce(snapshot(w=np.ones(3, np.float32)), TREE, trace_parent=TRACE_PARENT)
    without = Announcement.from_bytes(message.SerializeToString())
    assert without.inline_snapshot() is None
    message.inline_payload = b"".join(raw)
    announcement = Announcement.from_bytes(message.SerializeToString())
    assert (announcement.version, announcement.tree) == (VERSION, TREE)
    inline = announcement.inline_snapshot()
    assert inline is not None
    assert (inline.version, inline.published_at_s) == (VERSION, 5.0)
    np.testing.assert_array_equal(inline.tensors["w"], np.ones(3, np.float32))
    assert announcement.digests() == {"w": digest_of(raw[0])}


def test_announcement_with_a_foreign_payload_is_refused() -> None:
    message, _ = announce(snapshot(w=np.ones(3, np.float32)), TREE)
    message.inline_payload = np.zeros(3, np.float32).tobytes()
    with pytest.raises(CorruptionError):
        Announcement.from_bytes(message.SerializeToString()).inline_snapshot()


@given(data=st.binary(max_size=100))
@example(data=policy_pb2.PolicyAnnouncement().SerializeToString())
@example(
    data=policy_pb2.PolicyAnnouncement(
        version=policy_pb2.PolicyVersion(lineage="a"), lineages=[policy_pb2.Lineage(name="a", parent="b")]
    ).SerializeToString()
)
def test_any_bytes_give_an_announcement_or_a_record_error(data: bytes) -> None:
    try:
        Announcement.from_bytes(data)
    except RecordError:
        return
