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
