import hypothesis.strategies as st
from hypothesis import example, given

from tidegate.core.errors import RecordError
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.wire.chunks import chunk_deserializer, chunk_serializer

FIELD = 4
serialize = chunk_serializer(FIELD)
deserialize = chunk_deserializer(pb.LeaseBatchResponse, FIELD)


@given(chunk=st.binary(min_size=1, max_size=400))
def test_raw_chunk_is_the_message_protobuf_would_write(chunk: bytes) -> None:
    ordinary = pb.LeaseBatchResponse(chunk=chunk).SerializeToString()
    assert serialize(chunk) == ordinary
    assert serialize(memoryview(chunk)) == ordinary
    back = deserialize(ordinary)
    assert isinstance(back, memoryview)
    assert back == chunk


def test_large_chunk_comes_back_as_a_view_without_a_copy() -> None:
    data = serialize(bytes(3_000_000))
    back = deserialize(data)
    assert isinstance(back, memoryview)
    assert back.obj is data
    assert len(back) == 3_000_000


@given(
    batch_id=st.text(max_size=5),
    sizes=st.lists(st.integers(0, 2**64 - 1), max_size=3),
    chunk=st.binary(max_size=20),
)
def test_message_with_other_fields_goes_through_protobuf(
    batch_id: str, sizes: list[int], chunk: bytes
) -> None:
    message = pb.LeaseBatchResponse(batch_id=batch_id, frame_sizes=sizes, chunk=chunk)
    back = deserialize(serialize(message))
    if isinstance(back, memoryview):
        assert (batch_id, sizes) == ("", [])
        assert back == chunk
    else:
        assert back == message


@given(data=st.binary(max_size=60))
@example(data=b"\x22\x80")
@example(data=b"\x22\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80")
@example(data=b"\x22\x05abc")
@example(data=b"\x22\x01a\x22\x01b")
@example(data=b"\x22")
def test_any_bytes_mean_what_protobuf_says_or_are_refused(data: bytes) -> None:
    for candidate in (data, b"\x22" + data, b"\x22" + bytes([len(data)]) + data):
        expected = pb.LeaseBatchResponse()
        try:
            expected.ParseFromString(candidate)
        except Exception:
            expected = None
        try:
            back = deserialize(candidate)
        except RecordError:
            assert expected is None
            continue
        assert expected is not None
        assert (bytes(back) if isinstance(back, memoryview) else back.chunk) == expected.chunk
