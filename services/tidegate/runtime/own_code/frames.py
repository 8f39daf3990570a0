"""The frames between a service and a child process of own code: a length of four bytes, then MessagePack.

A child runs code that may do anything, so a service decodes its frames into types of its own and nothing else (no
pickle), and every length has a bound.
"""

import struct
from typing import BinaryIO

import msgspec

HEAD = struct.Struct("<I")
ANSWER_BYTES_MAX = 1 << 20
QUESTION_BYTES_MAX = 1 << 28


def frame(message: msgspec.Struct) -> bytes:
    """A message with its length."""
    data = msgspec.msgpack.encode(message)
    return HEAD.pack(len(data)) + data


def read_frame(file: BinaryIO) -> bytes:
    """The next message; empty at the end."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return b""
    (length,) = HEAD.unpack(head)
    return file.read(min(length, QUESTION_BYTES_MAX))


def write_frame(file: BinaryIO, message: msgspec.Struct) -> None:
    """Send a message at once."""
    file.write(frame(message))
    file.flush()
