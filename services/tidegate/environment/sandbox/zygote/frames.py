"""Messages between the worker and a run: a length, a JSON head, and the bytes that the head counts."""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, Protocol

_LENGTH = struct.Struct(">I")
_HEAD_BYTES_MAX = 1 << 16
_PARTS_MAX = 2


class Source(Protocol):
    """What a message is received from: a socket, or a pipe that is read like one."""

    def recv(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        ...


def packed(head: dict[str, Any], parts: Sequence[bytes]) -> bytes:
    """One message; ``head`` gains the sizes of ``parts``."""
    text = json.dumps({**head, "parts": [len(part) for part in parts]}).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *parts))


def send(connection: socket.socket, head: dict[str, Any], parts: Sequence[bytes]) -> None:
    """Send one message."""
    connection.sendall(packed(head, parts))


def receive(connection: Source, *, part_bytes_max: int) -> tuple[dict[str, Any], list[bytes]]:
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


def parse(received: bytes | bytearray, *, part_bytes_max: int) -> tuple[dict[str, Any], list[bytes]] | None:
    """The head and the parts of the message that ``received`` begins with; None while some of it is missing.

    Raises:
        ValueError: it is no message, or larger than it may be.
    """
    if len(received) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(received)
    if size > _HEAD_BYTES_MAX:
        raise ValueError(f"a head of {size} bytes")
    at = _LENGTH.size + size
    if len(received) < at:
        return None
    try:
        head: dict[str, Any] = json.loads(received[_LENGTH.size : at])
        sizes = [range(part_bytes_max + 1).index(size) for size in head.pop("parts")]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("a message without parts, or with one of a size it may not have") from error
    if len(sizes) > _PARTS_MAX:
        raise ValueError(f"{len(sizes)} parts")
    if len(received) < at + sum(sizes):
        return None
    parts: list[bytes] = []
    for size in sizes:
        parts.append(bytes(received[at : at + size]))
        at += size
    return head, parts


def _exactly(connection: Source, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(min(size - len(received), 1 << 18))
        if not piece:
            raise EOFError("the other end is gone")
        received += piece
    return bytes(received)
