import signal

import pytest

from tidegate.launch.restarts import (
    BACKOFF_MAX_S,
    BACKOFF_START_S,
    CRASHES_BEFORE_READY_MAX,
    CRASHES_MAX,
    HEALTHY_AFTER_S,
    KILL_SIGNALS,
    KILLED_BACKOFF_MAX_S,
    KILLS_MAX,
    PermanentFailure,
    Restart,
    after_exit,
)
from tidegate.runtime.exit_codes import BAD_INPUT


def test_backoff_doubles_up_to_its_bound() -> None:
    waits: list[float] = []
    crashes = 0
    for _ in range(CRASHES_MAX - 1):
        verdict = after_exit(crashes=crashes, lived_s=0.1, ever_ready=True, exit_code=1)
        assert isinstance(verdict, Restart)
        waits.append(verdict.backoff_s)
        crashes = verdict.crashes
    assert waits[:5] == pytest.approx([BACKOFF_START_S * 2**n for n in range(5)])
    assert max(waits) == BACKOFF_MAX_S


def test_process_that_keeps_dying_is_given_up() -> None:
    verdict = after_exit(crashes=CRASHES_MAX - 1, lived_s=1.0, ever_ready=True, exit_code=1)
    assert isinstance(verdict, PermanentFailure)
    assert str(CRASHES_MAX) in verdict.reason


def test_process_that_was_never_ready_fails_sooner() -> None:
    verdict = after_exit(crashes=CRASHES_BEFORE_READY_MAX - 1, lived_s=1.0, ever_ready=False, exit_code=1)
    assert isinstance(verdict, PermanentFailure)
    assert "was never ready" in verdict.reason


def test_healthy_life_forgets_earlier_deaths() -> None:
    verdict = after_exit(crashes=CRASHES_MAX - 1, lived_s=HEALTHY_AFTER_S, ever_ready=True, exit_code=1)
    assert verdict == Restart(backoff_s=BACKOFF_START_S, crashes=1)


def test_refused_settings_are_not_tried_again() -> None:
    assert isinstance(
        after_exit(crashes=0, lived_s=0.5, ever_ready=False, exit_code=BAD_INPUT), PermanentFailure
    )


def test_service_that_ever_ready_is_started_again_whatever_its_exit_code() -> None:
    assert isinstance(after_exit(crashes=0, lived_s=5.0, ever_ready=True, exit_code=BAD_INPUT), Restart)


def test_life_that_ended_in_a_long_hang_is_not_healthy_for_its_hang() -> None:
    lived_s = HEALTHY_AFTER_S + 2.0
    verdict = after_exit(
        crashes=3, lived_s=lived_s, ever_ready=True, exit_code=1, healthy_after_s=HEALTHY_AFTER_S + 30.0
    )
    assert isinstance(verdict, Restart)
    assert verdict.crashes == 4
    verdict = after_exit(
        crashes=3,
        lived_s=lived_s + 30.0,
        ever_ready=True,
        exit_code=1,
        healthy_after_s=HEALTHY_AFTER_S + 30.0,
    )
    assert isinstance(verdict, Restart)
    assert verdict.crashes == 1


def test_process_that_is_killed_again_and_again_comes_back_at_once() -> None:
    waits: list[float] = []
    kills = crashes = 0
    for number in range(KILLS_MAX - 1):
        number_of_signal = KILL_SIGNALS[number % len(KILL_SIGNALS)]
        verdict = after_exit(
            crashes=crashes, kills=kills, lived_s=1.0, ever_ready=number % 2 == 0, exit_code=-number_of_signal
        )
        assert isinstance(verdict, Restart)
        waits.append(verdict.backoff_s)
        crashes, kills = verdict.crashes, verdict.kills
    assert crashes == 0
    assert waits[:3] == pytest.approx([0.0, BACKOFF_START_S, 2 * BACKOFF_START_S])
    assert max(waits) == KILLED_BACKOFF_MAX_S
    last = after_exit(crashes=0, kills=kills, lived_s=1.0, ever_ready=True, exit_code=-signal.SIGKILL)
    assert isinstance(last, PermanentFailure)
    assert f"killed {KILLS_MAX} times" in last.reason


def test_kill_after_a_healthy_life_is_the_first() -> None:
    verdict = after_exit(
        crashes=3, kills=KILLS_MAX - 1, lived_s=HEALTHY_AFTER_S, ever_ready=True, exit_code=-signal.SIGKILL
    )
    assert verdict == Restart(backoff_s=0.0, crashes=0, kills=1)


def test_kill_between_crashes_excuses_none_of_them() -> None:
    verdict = after_exit(crashes=CRASHES_MAX - 1, lived_s=1.0, ever_ready=True, exit_code=-signal.SIGKILL)
    assert isinstance(verdict, Restart)
    assert isinstance(
        after_exit(crashes=verdict.crashes, lived_s=1.0, ever_ready=True, exit_code=1), PermanentFailure
    )


def test_fault_of_the_process_itself_is_a_crash_whatever_signal_it_raises() -> None:
    verdict = after_exit(crashes=CRASHES_MAX - 1, lived_s=1.0, ever_ready=True, exit_code=-signal.SIGSEGV)
    assert isinstance(verdict, PermanentFailure)


def test_exit_on_a_full_disk_is_no_crash() -> None:
    crashes = 0
    for _ in range(10 * CRASHES_MAX):
        verdict = after_exit(crashes=crashes, lived_s=0.1, ever_ready=False, exit_code=1, disk_full=True)
        assert isinstance(verdict, Restart)
        assert verdict.backoff_s <= 1.0
        crashes = verdict.crashes
    assert crashes == 0
