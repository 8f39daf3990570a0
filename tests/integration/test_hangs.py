"""A test that hangs ends at its timeout, on the event loop that services run on."""

import asyncio
import signal
from types import FrameType

import pytest

from tests.integration.conftest import new_event_loop


def fail_at_timeout(number: int, frame: FrameType | None) -> None:
    """As pytest-timeout does."""
    pytest.fail("Timeout")


def test_timeout_ends_a_loop_that_waits_for_ever() -> None:
    loop = new_event_loop()
    hang = loop.create_task(asyncio.Event().wait())
    before = signal.signal(signal.SIGUSR1, fail_at_timeout)
    try:
        loop.call_later(0.01, signal.raise_signal, signal.SIGUSR1)
        with pytest.raises(RuntimeError, match="stopped before"):
            loop.run_until_complete(hang)
    finally:
        signal.signal(signal.SIGUSR1, before)
        hang.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(hang)
        loop.close()
