"""The parser of messages against the library's, which it is a shortcut of."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from tidegate.runtime.message_parser import MessageParser

Call = tuple[Any, ...]


class Recorder:
    """What a parser calls of its client."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def _process_msg(self, *message: Any) -> None:
        self.calls.append(("message", *message))

    async def _process_ping(self) -> None:
        self.calls.append(("ping",))

    async def _process_pong(self) -> None:
        self.calls.append(("pong",))

    async def _process_err(self, text: str) -> None:
        self.calls.append(("error", text))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.calls.append(("info", info))


# Words of the protocol inside of bodies, where they are none.
_texts = st.lists(
    st.one_of(st.sampled_from([b"HMSG s 1 r 3 5\r\n", b"PING\r\n", b"\r\n", b" "]), st.binary(max_size=8)),
    max_size=6,
).map(b"".join)
_subjects = st.sampled_from([b"s", b"tg.r.traj.0", b"\xff\xfe", b"$JS.ACK.x.1.2.3.4.5"])


@st.composite
def _messages(draw: st.DrawFn) -> bytes:
    headers, body = draw(st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"])), draw(_texts)
    subject, sid = draw(_subjects), draw(st.sampled_from([b"1", b"12"]))
    reply = draw(st.sampled_from([b"", b" r", b"  r"]))
    if headers or draw(st.booleans()):
        sizes = b"%d %d" % (len(headers), len(headers) + len(body))
        return b"HMSG " + subject + b" " + sid + reply + b" " + sizes + b"\r\n" + headers + body + b"\r\n"
    return b"MSG " + subject + b" " + sid + reply + b" %d\r\n" % len(body) + body + b"\r\n"


_commands = st.one_of(
    _messages(), st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'no'\r\n", b"INFO {}\r\n"])
)


def _calls(parser_type: type[Parser], reads: Sequence[bytes]) -> tuple[list[Call], bool]:
    recorder = Recorder()
    parser: Any = parser_type(recorder)

    async def parse() -> bool:
        try:
            for read in reads:
                await parser.parse(read)
        except ProtocolError:
            return True
        return False

    return recorder.calls, asyncio.run(parse())


@given(st.lists(_commands, max_size=8).map(b"".join), st.lists(st.integers(0, 400), max_size=8))
def test_calls_are_the_librarys_however_the_stream_is_read(stream: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    reads = [stream[start:stop] for start, stop in pairwise(places)]
    assert _calls(MessageParser, reads) == _calls(Parser, reads)


@pytest.mark.parametrize(
    "stream",
    [
        b"HMSG s 1 r 0 3\r\nabc\r\n",
        b"HMSG s 1 r 5 3\r\nabcde\r\n",
        b"HMSG s 1 r -1 3\r\nabc\r\n",
        b"HMSG s 1 r 1_0 12\r\nabcdefghijkl\r\n",
        b"HMSG s one r 1 3\r\nabc\r\n",
        b"HMSG s 1 r 1\r\nabc\r\n",
        b"HMSG \r\n",
        b"HMSG s 1 r 1 99999999999\r\nabc\r\n",
        b"GARBAGE\r\n",
    ],
)
def test_what_is_no_message_is_left_to_the_library(stream: bytes) -> None:
    whole = b"HMSG s 1 r 1 4\r\nhbod\r\n"
    assert _calls(MessageParser, [whole + stream]) == _calls(Parser, [whole + stream])


def test_message_that_is_there_whole_is_no_part_of_the_buffer() -> None:
    recorder = Recorder()
    parser: Any = MessageParser(recorder)
    asyncio.run(parser.parse(b"HMSG s 7 r 2 6\r\nhhbody\r\n" * 2 + b"HMSG s 7 r 2 6\r\nhhb"))
    assert recorder.calls == [("message", 7, b"s", b"r", b"body", b"hh")] * 2
    assert (bytes(parser.buf), parser.needed) == (b"hhb", 6)
