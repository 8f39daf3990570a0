"""The watchdog of the event loop: what counts as a stall, whose fault it is, and that the function is named."""

import asyncio
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tidegate.catalogue import process
from tidegate.runtime.loop_watchdog import (
    BEAT_S,
    LOG_EVERY_S,
    STALL_MAX_S,
    Beat,
    LoopWatchdog,
    StackFrame,
    Stall,
    culprit,
    frames_of,
    is_worth_a_line,
    stall_between,
)
from tidegate.runtime.stats_board import StatsBoard


def stall(late_s: float, cpu_s: float) -> Stall | None:
    return stall_between(Beat(100.0, 7.0), Beat(100.0 + BEAT_S + late_s, 7.0 + cpu_s))


def test_beat_that_is_late_by_no_more_than_allowed_is_no_stall() -> None:
    assert stall(0.0, 0.0) is None
    assert stall(STALL_MAX_S - 0.01, 5.0) is None


def test_late_beat_is_a_stall_of_the_time_by_which_it_is_late() -> None:
    found = stall(3.0, 0.01)
    assert found is not None
    assert found.duration_s == pytest.approx(3.0)


def test_thread_that_did_not_compute_was_waiting_however_long_it_took() -> None:
    """Another process had the processor, or the machine was suspended: nothing of ours is slow."""
    found = stall(60.0, STALL_MAX_S / 2)
    assert found is not None
    assert found.kind == "waiting"


def test_thread_that_computed_for_longer_than_allowed_is_at_fault_also_on_a_busy_machine() -> None:
    found = stall(10.0, 0.2)
    assert found is not None
    assert (found.kind, found.cpu_s) == ("computing", pytest.approx(0.2))


def test_cpu_time_from_before_the_beat_was_due_makes_no_stall_longer_than_it_was() -> None:
    found = stall(0.2, 0.24)
    assert found is not None
    assert found.cpu_s == pytest.approx(0.2)


def test_lines_are_bounded_unless_a_stall_is_the_longest_yet() -> None:
    logged = Stall(1.0, 1.0)
    assert is_worth_a_line(Stall(0.2, 0.2), None, since_s=0.0)
    assert not is_worth_a_line(Stall(0.9, 0.9), logged, since_s=LOG_EVERY_S - 1)
    assert is_worth_a_line(Stall(1.1, 1.1), logged, since_s=0.0)
    assert is_worth_a_line(Stall(0.2, 0.2), logged, since_s=LOG_EVERY_S)


def test_innermost_function_outside_of_libraries_is_named() -> None:
    library, own = (
        StackFrame("json.dumps:1", is_library=True),
        StackFrame("tidegate.wire.digest.digest_of:9", is_library=False),
    )
    assert culprit([library, own, StackFrame("__main__.run:3", is_library=False)]) == own.line
    assert culprit([library]) == library.line
    assert culprit([]) == ""


def test_own_functions_are_told_from_those_of_libraries() -> None:
    own = frames_of(sys._getframe())  # pyright: ignore[reportPrivateUsage]
    assert (own[0].is_library, own[-1].is_library) == (False, True)
    assert own[0].line.startswith(f"{__name__}.test_own_functions")


def compute_for_a_second() -> None:
    until_s = time.thread_time() + 1.0
    while time.thread_time() < until_s:
        pass


def wait_for_a_second() -> None:
    time.sleep(1.0)


async def watched(block: Callable[[], None]) -> tuple[StatsBoard, list[Any]]:
    watchdog = LoopWatchdog(structlog.get_logger())
    with capture_logs() as logs:
        watchdog.start()
        await asyncio.sleep(0.02)
        block()
        await asyncio.sleep(3 * BEAT_S)
        watchdog.stop()
    stats = StatsBoard(service="learner", instance="learner", started_at_s=0.0)
    watchdog.report(stats)
    return stats, [SimpleNamespace(**line) for line in logs if line["event"] == "event_loop_stalled"]


async def test_function_that_computes_in_the_loop_is_measured_and_named() -> None:
    stats, lines = await watched(compute_for_a_second)
    assert stats.value(process.LOOP_STALLS_OF.member("computing")) >= 1
    assert stats.value(process.LOOP_STALL_CPU_S) == pytest.approx(1.0, abs=0.1)
    assert stats.value(process.LOOP_STALL_LONGEST_S) >= 0.9
    line = max(lines, key=lambda each: each.cpu_s)
    assert (line.kind, line.log_level) == ("computing", "warning")
    assert "compute_for_a_second" in line.where
    assert "compute_for_a_second" in stats.snapshot(at_s=0.0).labels[process.LOOP_STALL]


async def test_function_that_blocks_without_computing_is_counted_apart_and_is_no_warning() -> None:
    stats, lines = await watched(wait_for_a_second)
    assert stats.value(process.LOOP_STALLS_OF.member("computing")) == 0
    assert stats.value(process.LOOP_STALLS_OF.member("waiting")) >= 1
    assert stats.value(process.LOOP_STALL_CPU_S) == 0
    line = max(lines, key=lambda each: each.duration_s)
    assert (line.kind, line.log_level) == ("waiting", "info")
    assert "wait_for_a_second" in line.where


async def test_stall_at_the_very_end_is_measured_too() -> None:
    watchdog = LoopWatchdog(structlog.get_logger())
    watchdog.start()
    compute_for_a_second()
    watchdog.stop()
    assert watchdog.longest["computing"].cpu_s > 0.8
