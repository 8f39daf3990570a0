"""Virtual time, and processes that end as by ``kill -9``."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tidegate.sim.process import Process, Worker
from tidegate.sim.virtual_loop import DeadlockError, VirtualClock, VirtualLoop

pytestmark = pytest.mark.simulation

DAY_S = 86_400.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.close()


def test_a_day_passes_at_once_and_everything_happens_at_its_time() -> None:
    times: list[float] = []

    async def scenario() -> None:
        clock = VirtualClock(asyncio.get_running_loop())

        async def note(after_s: float) -> None:
            await asyncio.sleep(after_s)
            times.append(clock.monotonic_s())

        await asyncio.gather(note(DAY_S), note(1.0), note(DAY_S / 2))

    run(scenario())
    assert times == pytest.approx([1.0, DAY_S / 2, DAY_S])


def test_deadlock_is_an_error_and_no_hang() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run(scenario())


def test_killed_process_runs_no_further_line_of_any_of_its_tasks() -> None:
    lines: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(2.0)
            lines.append("child went on")
        finally:
            lines.append("child cleaned up")

    async def parent() -> None:
        task = asyncio.create_task(child())
        lines.append("parent started")
        await task

    async def scenario() -> None:
        process = Process("victim")
        process.start(parent())
        await asyncio.sleep(1.0)
        process.kill()
        await asyncio.sleep(5.0)
        assert lines == ["parent started"]

    run(scenario())


def test_process_continues_while_another_one_is_killed() -> None:
    steps: dict[str, int] = {"victim": 0, "other": 0}

    async def count(name: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            steps[name] += 1

    async def scenario() -> None:
        victim, other = Process("victim"), Process("other")
        victim.start(count("victim"))
        other.start(count("other"))
        await asyncio.sleep(3.5)
        victim.kill()
        await asyncio.sleep(3.0)
        other.kill()

    run(scenario())
    assert steps == {"victim": 3, "other": 6}


def test_work_in_a_thread_takes_virtual_time_while_the_loop_goes_on() -> None:
    seen: list[tuple[str, float]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def work() -> float:
            for _ in range(3):
                Worker.current().pause(1.0)
                seen.append(("work", loop.time()))
            return loop.time()

        async def work_in_a_thread() -> None:
            with ThreadPoolExecutor(max_workers=1) as threads:
                seen.append(("done", await loop.run_in_executor(threads, work)))

        process = Process("worker")
        process.start(work_in_a_thread())
        await asyncio.sleep(1.5)
        seen.append(("loop", loop.time()))
        await asyncio.sleep(5.0)

    run(scenario())
    assert [what for what, _ in seen] == ["work", "loop", "work", "work", "done"]
    assert [at_s for _, at_s in seen] == pytest.approx([1.0, 1.5, 2.0, 3.0, 3.0])


def test_killing_a_process_ends_its_threads_where_they_are() -> None:
    seen: list[str] = []

    async def scenario() -> None:
        def work() -> None:
            seen.append("began")
            Worker.current().pause(1.0)
            seen.append("went on")

        async def work_in_a_thread() -> None:
            with ThreadPoolExecutor(max_workers=1) as threads:
                await asyncio.get_running_loop().run_in_executor(threads, work)

        process = Process("worker")
        process.start(work_in_a_thread())
        await asyncio.sleep(0.5)
        process.kill()
        await asyncio.sleep(5.0)

    run(scenario())
    assert seen == ["began"]
