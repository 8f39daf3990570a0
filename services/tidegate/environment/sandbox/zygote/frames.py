"""Messages between the worker and a run: a length, a JSON head, and the bytes that the head counts."""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct(">I")
_HEAD_BYTES_MAX = 1 << 16


def send(connection: socket.socket, head: dict[str, Any], parts: Sequence[bytes]) -> None:
    """One message; ``head`` gains the sizes of ``parts``."""
    text = json.dumps({**head, "parts": [len(part) for part in parts]}).encode()
    connection.sendall(b"".join((_LENGTH.pack(len(text)), text, *parts)))


def receive(connection: socket.socket, *, part_bytes_max: int) -> tuple[dict[str, Any], list[bytes]]:
    """The head and the parts of one message.

    Raises:
        EOFError: the other end is gone.
        ValueError: the message is larger than it may be.
        OSError: the connection failed, or its timeout passed.
    """
    (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if size > _HEAD_BYTES_MAX:
        raise ValueError(f"a head of {size} bytes")
    head: dict[str, Any] = json.loads(_exactly(connection, size))
    sizes: list[int] = head.pop("parts")
    if any(size > part_bytes_max for size in sizes):
        raise ValueError(f"a part of {max(sizes)} bytes")
    return head, [_exactly(connection, size) for size in sizes]


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(min(size - len(received), 1 << 18))
        if not piece:
            raise EOFError("the other end is gone")
        received += piece
    return bytes(received)
