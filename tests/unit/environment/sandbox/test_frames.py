"""The protocol of worker and run: messages arrive as sent, and invalid ones are refused."""

import socket
import struct
from collections.abc import Iterator

import pytest

from tidegate.environment.sandbox.zygote import frames


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def test_a_message_arrives_as_it_was_sent(pair: Pair) -> None:
    frames.send(pair[0], {"cpu_s": 1.5, "limit": None}, (b"code", b""))
    assert frames.receive(pair[1], part_bytes_max=4) == ({"cpu_s": 1.5, "limit": None}, [b"code", b""])


def test_part_above_its_limit_is_refused_unread(pair: Pair) -> None:
    frames.send(pair[0], {}, (b"12345",))
    with pytest.raises(ValueError, match="5 bytes"):
        frames.receive(pair[1], part_bytes_max=4)


def test_head_above_its_limit_is_refused_unread(pair: Pair) -> None:
    pair[0].sendall(struct.pack(">I", 1 << 30))
    with pytest.raises(ValueError, match="head"):
        frames.receive(pair[1], part_bytes_max=4)


def test_an_end_in_the_middle_is_no_message(pair: Pair) -> None:
    pair[0].sendall(struct.pack(">I", 10) + b"{")
    pair[0].close()
    with pytest.raises(EOFError):
        frames.receive(pair[1], part_bytes_max=4)


def test_message_is_parsed_once_it_is_complete() -> None:
    data = frames.packed({"status": 0}, (b"out", b""))
    for size in range(len(data)):
        assert frames.parse(data[:size], part_bytes_max=3) is None
    assert frames.parse(data + b"more", part_bytes_max=3) == ({"status": 0}, [b"out", b""])


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 1 << 30),
        frames.packed({}, (b"four",)),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 2) + b"{}",
        struct.pack(">I", 15) + b'{"parts": [-1]}',
        struct.pack(">I", 16) + b'{"parts": ["1"]}',
        struct.pack(">I", 1 << 15) + b"[" * (1 << 15),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"part|head"):
        frames.parse(data, part_bytes_max=3)
