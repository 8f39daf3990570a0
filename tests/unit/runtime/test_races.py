"""Work against the signal that stops it: every outcome, and nothing left running."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from tidegate.core.errors import UnavailableError
from tidegate.runtime.races import ended_within, is_set_within, run_until


@pytest.fixture(autouse=True)
async def no_task_left() -> AsyncGenerator[None]:
    """Neither the work nor the signal outlives a race, and no failure is left unread."""
    before = asyncio.all_tasks()
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    yield
    assert asyncio.all_tasks() - before <= {asyncio.current_task()}
    assert unheard == []


async def never() -> None:
    await asyncio.Event().wait()


async def test_work_that_ends_first_gives_its_result() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "result"

    assert await run_until(never(), work()) == "result"


async def test_a_stop_that_comes_first_ends_the_work() -> None:
    stop, ended = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        try:
            stop.set()
            await asyncio.sleep(3600.0)
        finally:
            await asyncio.sleep(0)  # cleans up, and is waited for
            ended.set()
        return "result"

    assert await run_until(stop.wait(), work()) is None
    assert ended.is_set()


async def test_a_result_counts_if_both_finish_at_once() -> None:
    loop = asyncio.get_running_loop()
    result: asyncio.Future[str] = loop.create_future()
    stop = asyncio.Event()

    def both() -> None:
        stop.set()
        result.set_result("result")

    loop.call_soon(both)
    assert await run_until(stop.wait(), result) == "result"


async def test_a_result_counts_if_the_cancellation_comes_too_late() -> None:
    stop = asyncio.Event()

    async def work() -> str:
        stop.set()
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            return "committed already"
        return "slept"

    assert await run_until(stop.wait(), work()) == "committed already"


async def test_a_failure_of_the_work_propagates() -> None:
    async def work() -> str:
        raise UnavailableError("away")

    with pytest.raises(UnavailableError, match="away"):
        await run_until(never(), work())


async def test_a_failure_of_cancelled_work_is_no_news_but_a_defect_is() -> None:
    async def work(error: Exception, stop: asyncio.Event) -> str:
        stop.set()
        try:
            await asyncio.sleep(3600.0)
        finally:
            raise error

    stop = asyncio.Event()
    assert await run_until(stop.wait(), work(UnavailableError("cut off"), stop)) is None
    stop = asyncio.Event()
    with pytest.raises(ZeroDivisionError):
        await run_until(stop.wait(), work(ZeroDivisionError(), stop))


async def test_a_failure_of_the_signal_propagates_and_ends_the_work() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_until(broken(), asyncio.sleep(3600.0))


async def test_a_cancelled_caller_ends_both() -> None:
    ended: list[str] = []

    async def note(name: str) -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    race = asyncio.create_task(run_until(note("stop"), note("work")))
    await asyncio.sleep(0.001)
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert sorted(ended) == ["stop", "work"]


async def test_shared_work_survives_a_stop_when_shielded() -> None:
    shared: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    assert await run_until(asyncio.sleep(0), asyncio.shield(shared)) is None
    shared.set_result("later")
    assert await shared == "later"


async def test_attempt_that_drops_a_cancellation_is_cancelled_again() -> None:
    async def attempt() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600.0)
        await asyncio.sleep(600.0)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ended_within(attempt(), timeout_s=0.01), timeout=60.0)


async def test_attempt_that_ends_in_time_gives_its_result_or_its_error() -> None:
    async def fail() -> None:
        raise ValueError("no broker")

    assert await ended_within(asyncio.sleep(0.0, 7), timeout_s=60.0) == 7
    with pytest.raises(ValueError, match="no broker"):
        await ended_within(fail(), timeout_s=60.0)


@pytest.mark.parametrize("num_turns", range(5))
async def test_wait_that_is_cancelled_while_its_event_is_set_is_cancelled(num_turns: int) -> None:
    """However many turns of the loop lie between the two; asyncio.wait_for drops it after one of them."""
    event = asyncio.Event()

    async def goes_on() -> str:
        await is_set_within(event, timeout_s=3600.0)
        await asyncio.sleep(3600.0)
        return "result"

    waiting = asyncio.create_task(goes_on())
    await asyncio.sleep(0)
    event.set()
    for _ in range(num_turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=60.0)
    assert waiting.cancelled()


async def test_event_that_is_set_needs_no_time() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, timeout_s=0.0)
    assert not await is_set_within(event, timeout_s=0.01)
    event.set()
    assert await is_set_within(event, timeout_s=-1.0)
    assert await is_set_within(event, timeout_s=3600.0)


async def test_event_that_is_set_meanwhile_ends_the_wait() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await is_set_within(event, timeout_s=3600.0)
