import pytest

from tidegate.launch.restarts import (
    BACKOFF_MAX_S,
    BACKOFF_START_S,
    CRASHES_BEFORE_READY_MAX,
    CRASHES_MAX,
    EXIT_BAD_INPUT,
    HEALTHY_AFTER_S,
    PermanentFailure,
    Restart,
    after_exit,
)


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
    verdict = after_exit(crashes=CRASHES_MAX - 1, lived_s=HEALTHY_AFTER_S, ever_ready=True, exit_code=-9)
    assert verdict == Restart(backoff_s=BACKOFF_START_S, crashes=1)


def test_refused_settings_are_not_tried_again() -> None:
    assert isinstance(
        after_exit(crashes=0, lived_s=0.5, ever_ready=False, exit_code=EXIT_BAD_INPUT), PermanentFailure
    )


def test_service_that_ever_ready_is_started_again_whatever_its_exit_code() -> None:
    assert isinstance(after_exit(crashes=0, lived_s=5.0, ever_ready=True, exit_code=EXIT_BAD_INPUT), Restart)


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
