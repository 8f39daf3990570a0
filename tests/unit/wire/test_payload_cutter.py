"""A payload comes apart into its tensors wherever its chunks end."""

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from tidegate.core.errors import CorruptionError, RecordError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.wire.digest import digest_of
from tidegate.wire.payload_cutter import PayloadCutter

VERSION = PolicyVersion(LineageName("0-aaaa"), 3)
FIX = "send it again"


class Entry(msgspec.Struct, frozen=True):
    """A line of a manifest."""

    name: str
    size: int
    digest: bytes


def entries(*tensors: bytes) -> list[Entry]:
    return [Entry(f"w{index}", len(raw), digest_of(raw)) for index, raw in enumerate(tensors)]


def cutter(*tensors: bytes) -> PayloadCutter[Entry]:
    return PayloadCutter(entries(*tensors), version=VERSION, fix=FIX)


@given(tensors=st.lists(st.binary(max_size=9), max_size=6), chunk_bytes=st.integers(1, 12))
def test_tensors_come_back_whatever_the_chunks(tensors: list[bytes], chunk_bytes: int) -> None:
    payload, cutting = b"".join(tensors), cutter(*tensors)
    found = {f"w{index}": bytearray() for index in range(len(tensors))}
    for start in range(0, len(payload), chunk_bytes):
        for entry, offset, part in cutting.cut(payload[start : start + chunk_bytes]):
            assert offset == len(found[entry.name])
            found[entry.name] += part
    cutting.finish()
    assert [bytes(raw) for raw in found.values()] == tensors


def test_changed_byte_is_found_before_the_last_part_of_its_tensor_is_returned() -> None:
    cutting = cutter(b"abcd", b"efgh")
    parts: list[bytes] = []

    def take(chunk: bytes) -> None:
        parts.extend(bytes(part) for _, _, part in cutting.cut(chunk))

    take(b"abcdeX")
    with pytest.raises(CorruptionError, match="'w1' of policy 0-aaaa@3 does not match") as caught:
        take(b"gh")
    assert caught.value.fix == FIX
    assert parts == [b"abcd", b"eX"]


def test_empty_tensor_that_claims_bytes_it_has_not_is_refused() -> None:
    with pytest.raises(CorruptionError, match="'w0'"):
        PayloadCutter([Entry("w0", 0, digest_of(b"x"))], version=VERSION, fix=FIX)


def test_payload_that_ends_early_names_the_tensor_it_ended_in() -> None:
    cutting = cutter(b"abcd", b"efgh")
    assert len(list(cutting.cut(b"abcdef"))) == 2
    with pytest.raises(RecordError, match="ended inside of its tensor 'w1'"):
        cutting.finish()


def test_more_bytes_than_the_manifest_lists_are_refused() -> None:
    with pytest.raises(RecordError, match="more bytes"):
        list(cutter(b"abcd").cut(b"abcde"))
