import hypothesis.strategies as st
import pytest
from hypothesis import given

from tidegate.core.errors import RecordError
from tidegate.v1 import trajectory_pb2
from tidegate.wire.reference import PayloadReference, reference_from_bytes


def test_reference_comes_back_as_it_was_sent() -> None:
    message = trajectory_pb2.PayloadReference(payload_id="t-1:scored", size=9, digest=b"d" * 16)
    assert reference_from_bytes(message.SerializeToString()) == PayloadReference("t-1:scored", 9, b"d" * 16)


def test_reference_without_a_digest_is_refused() -> None:
    with pytest.raises(RecordError, match="digest"):
        reference_from_bytes(b"")


@given(data=st.binary(max_size=60))
def test_any_bytes_give_a_reference_or_a_record_error(data: bytes) -> None:
    try:
        reference_from_bytes(data)
    except RecordError:
        return
