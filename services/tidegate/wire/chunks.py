"""Raw chunks in protobuf's own framing, without protobuf's copies.

A streamed message that holds only ``bytes chunk = N`` is, on the wire, a tag, a length and the bytes. Writing that
by hand keeps the contract of the ``.proto`` (reflection and other languages see ordinary messages) and moves bulk
tensors at the rate of raw gRPC. Messages with other fields go through protobuf as usual.
"""

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from tidegate.core.errors import RecordError

MessageT = TypeVar("MessageT", bound=Message)

_LENGTH_DELIMITED = 2


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def chunk_serializer(field_number: int) -> Callable[[Message | bytes | memoryview], bytes]:
    """A gRPC serializer that takes a whole message, or the bytes of its ``chunk`` field."""
    tag = bytes([field_number << 3 | _LENGTH_DELIMITED])

    def serialize(value: Message | bytes | memoryview) -> bytes:
        if isinstance(value, Message):
            return value.SerializeToString()
        return b"".join((tag, _varint(len(value)), value))

    return serialize


def chunk_deserializer(
    message_type: type[MessageT], field_number: int
) -> Callable[[bytes], MessageT | memoryview]:
    """A gRPC deserializer that returns a view of the chunk where a message holds nothing else, else the message."""
    tag = field_number << 3 | _LENGTH_DELIMITED

    def deserialize(data: bytes) -> MessageT | memoryview:
        if data and data[0] == tag:
            length, position, shift, complete = 0, 1, 0, False
            while position < len(data) and not complete:
                byte = data[position]
                length |= (byte & 0x7F) << shift
                position, shift, complete = position + 1, shift + 7, not byte & 0x80
            if complete and position + length == len(data):
                return memoryview(data)[position:]
        message = message_type()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise RecordError(f"A {message_type.__name__} cannot be parsed", why=str(error)) from error
        return message

    return deserialize
