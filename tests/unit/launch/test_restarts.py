import pytest

from tidegate.launch.restarts import (
    BACKOFF_MAX_S,
    BACKOFF_START_S,
    DEATHS_BEFORE_READY_MAX,
    DEATHS_MAX,
    EXIT_BAD_INPUT,
    HEALTHY_AFTER_S,
    Again,
    GiveUp,
    after_death,
)


def test_backoff_doubles_up_to_its_bound() -> None:
    waits: list[float] = []
    deaths = 0
    for _ in range(DEATHS_MAX - 1):
        verdict = after_death(deaths=deaths, lived_s=0.1, ever_ready=True, exit_code=1)
        assert isinstance(verdict, Again)
        waits.append(verdict.backoff_s)
        deaths = verdict.deaths
    assert waits[:5] == pytest.approx([BACKOFF_START_S * 2**n for n in range(5)])
    assert max(waits) == BACKOFF_MAX_S


def test_process_that_keeps_dying_is_given_up() -> None:
    verdict = after_death(deaths=DEATHS_MAX - 1, lived_s=1.0, ever_ready=True, exit_code=1)
    assert isinstance(verdict, GiveUp)
    assert str(DEATHS_MAX) in verdict.reason


def test_process_that_never_was_ready_is_given_up_sooner() -> None:
    verdict = after_death(deaths=DEATHS_BEFORE_READY_MAX - 1, lived_s=1.0, ever_ready=False, exit_code=1)
    assert isinstance(verdict, GiveUp)
    assert "never was ready" in verdict.reason


def test_healthy_life_forgets_earlier_deaths() -> None:
    verdict = after_death(deaths=DEATHS_MAX - 1, lived_s=HEALTHY_AFTER_S, ever_ready=True, exit_code=-9)
    assert verdict == Again(backoff_s=BACKOFF_START_S, deaths=1)


def test_refused_settings_are_not_tried_again() -> None:
    assert isinstance(after_death(deaths=0, lived_s=0.5, ever_ready=False, exit_code=EXIT_BAD_INPUT), GiveUp)


def test_service_that_ever_ready_is_started_again_whatever_its_exit_code() -> None:
    assert isinstance(after_death(deaths=0, lived_s=5.0, ever_ready=True, exit_code=EXIT_BAD_INPUT), Again)
