"""Handlers of core subscriptions on a real broker."""

import asyncio

import pytest
from structlog.testing import capture_logs

from tidegate.runtime.bus import Bus

pytestmark = pytest.mark.integration

SUBJECT = "anything"


async def test_handler_that_raises_is_logged_once_in_a_while_and_gets_the_next_message(bus: Bus) -> None:
    seen: list[bytes] = []

    async def receive(data: bytes, _headers: dict[str, str]) -> None:
        seen.append(data)
        if data != b"last":
            raise KeyError("a defect")

    with capture_logs() as lines:
        await bus.subscribe(SUBJECT, receive)
        for data in (b"1", b"2", b"3", b"last"):
            await bus.publish_core(SUBJECT, data)
        async with asyncio.timeout(60.0):
            while seen[-1:] != [b"last"]:
                await asyncio.sleep(0.01)
    (line,) = [each for each in lines if each["log_level"] == "error"]
    assert (line["event"], line["subject"]) == ("message_handler_failed", SUBJECT)
    assert line["exc_info"], "with its traceback"
    assert seen == [b"1", b"2", b"3", b"last"]
