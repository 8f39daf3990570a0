"""A reference to a frame that was uploaded to the store, sent in place of the message."""

import msgspec
from google.protobuf.message import DecodeError

from tidegate.core.errors import RecordError
from tidegate.v1 import trajectory_pb2


class PayloadReference(msgspec.Struct, frozen=True):
    """``size`` and XXH3-128 ``digest`` of the frame; ``payload_id`` is for people."""

    payload_id: str
    size: int
    digest: bytes


def reference_from_proto(message: trajectory_pb2.PayloadReference) -> PayloadReference:
    """A reference from a message."""
    return PayloadReference(payload_id=message.payload_id, size=message.size, digest=message.digest)


def reference_from_bytes(data: bytes) -> PayloadReference:
    """A reference from the body of a message that carries ``HEADER_REFERENCE``.

    Raises:
        RecordError: the bytes are no reference.
    """
    message = trajectory_pb2.PayloadReference()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RecordError("A payload reference cannot be parsed", why=str(error)) from error
    if not message.digest:
        raise RecordError("A payload reference names no digest")
    return reference_from_proto(message)
