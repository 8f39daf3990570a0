"""Virtual time moves with every turn, so that a wait for the rest of a deadline ends."""

import asyncio
import contextlib

import pytest

from tidegate.sim.virtual_loop import VirtualLoop

pytestmark = pytest.mark.simulation


async def wait_out(deadline_s: float) -> int:
    """Wait for the remaining time again and again, as a loop that other events may wake."""
    loop, nothing = asyncio.get_running_loop(), asyncio.Event()
    num_waits = 0
    while (left_s := deadline_s - loop.time()) > 0:
        num_waits += 1
        assert num_waits < 100_000, "time stands still"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(nothing.wait(), timeout=left_s)
    return num_waits


def test_deadlines_within_a_clocks_resolution_of_each_other_are_both_reached() -> None:
    async def both() -> None:
        now_s = asyncio.get_running_loop().time()
        await asyncio.gather(
            wait_out(now_s + 1.0), wait_out(now_s + 1.0 + 5e-7), wait_out(now_s + 1.0 + 9e-7)
        )

    loop = VirtualLoop()
    try:
        loop.run_until_complete(both())
        assert 1.0 < loop.time() < 1.1
    finally:
        loop.close()
