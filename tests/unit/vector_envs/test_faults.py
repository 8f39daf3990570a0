"""Pauses after faults, and when an environment is given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.vector_envs.faults import (
    FAULTS_IN_A_ROW_MAX,
    HEALTHY_STEPS,
    PAUSE_STEPS_MAX,
    RECENT_MAX,
    EnvironmentFailedError,
    Fault,
    FaultLog,
)


def fault(copy: int = 0) -> Fault:
    return Fault("raised", "My-v0", copy, "step", "ValueError('x') at my.py:1")


def test_pauses_double_up_to_their_bound() -> None:
    log = FaultLog("My-v0", num_units=2)
    step, pauses = 0, list[int]()
    for _ in range(20):
        pause = log.add(fault(), unit=0, step=step)
        pauses.append(pause)
        step += pause + 1
    assert pauses[:6] == [0, 1, 3, 7, 15, 31]
    assert max(pauses) == pauses[-1] == PAUSE_STEPS_MAX


def test_copy_that_was_healthy_between_faults_never_pauses() -> None:
    log = FaultLog("My-v0", num_units=1)
    assert [log.add(fault(), unit=0, step=index * HEALTHY_STEPS) for index in range(1_000)] == [0] * 1_000


def test_single_unit_never_pauses_and_is_given_up() -> None:
    log = FaultLog("My-v0", num_units=1)
    assert [log.add(fault(), unit=0, step=step) for step in range(FAULTS_IN_A_ROW_MAX - 1)] == [0] * 9
    with pytest.raises(EnvironmentFailedError, match=r"'My-v0' keeps failing.*at my.py:1"):
        log.add(fault(), unit=0, step=9)


def test_one_healthy_copy_keeps_the_environment() -> None:
    log = FaultLog("My-v0", num_units=2)
    for step in range(FAULTS_IN_A_ROW_MAX):
        log.add(fault(1), unit=1, step=step)
    for step in range(10_000, 10_000 + 5 * FAULTS_IN_A_ROW_MAX):
        log.add(fault(0), unit=0, step=step)  # the other one failed long ago, and has been healthy since
    report = log.take()
    assert report is not None
    assert report.counts == {"raised": 6 * FAULTS_IN_A_ROW_MAX}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300)), max_size=300))
def test_environment_is_given_up_only_while_no_copy_is_healthy(faults: list[tuple[int, int]]) -> None:
    log = FaultLog("My-v0", num_units=4)
    step = 0
    last: dict[int, tuple[int, int]] = dict.fromkeys(range(4), (0, 0))
    for unit, gap in faults:
        step += gap
        try:
            pause = log.add(fault(unit), unit=unit, step=step)
        except EnvironmentFailedError:
            for other in range(4):
                failed_at, paused = last[other] if other != unit else (step, 0)
                assert step - failed_at - paused < HEALTHY_STEPS
            return
        last[unit] = (step, pause)


def test_reports_are_bounded_and_counts_are_not() -> None:
    log = FaultLog("My-v0", num_units=2)
    for copy in range(1_000):
        log.add(fault(copy), unit=0, step=copy * HEALTHY_STEPS)
    report = log.take()
    assert report is not None
    assert [each.copy for each in report.newest] == list(range(1_000 - RECENT_MAX, 1_000))
    assert report.counts == {"raised": 1_000}
    assert log.take() is None


def test_traceback_is_kept_once_for_each_line_that_raises() -> None:
    log = FaultLog("My-v0", num_units=1)

    def raised(value: int) -> Fault:
        try:
            {}[value]
        except KeyError as error:
            return log.raised(2, "reset", error)
        raise AssertionError

    first, second = raised(1), raised(2)
    assert "{}[value]" in first.trace
    assert second.trace == ""
    assert str(second).startswith("Copy 2 of 'My-v0' raised in reset: KeyError(2) at test_faults.py:")
