import pytest

from tidegate.core.errors import BackpressureError
from tidegate.trajectory_store.opening_rate import OPENINGS_MAX, PERIOD_S, OpeningRate


def test_fifty_lineages_in_a_row_are_too_many_and_time_frees_a_place() -> None:
    rate = OpeningRate()
    for _ in range(OPENINGS_MAX):
        rate.take(now_s=100.0)
    for _ in range(50 - OPENINGS_MAX):
        with pytest.raises(BackpressureError, match="32 lineages") as caught:
            rate.take(now_s=101.0)
        assert caught.value.retry_after_s == PERIOD_S - 1.0
    rate.take(now_s=100.0 + PERIOD_S)


def test_learner_that_is_killed_every_five_seconds_opens_its_lineages() -> None:
    rate = OpeningRate()
    for restart in range(200):
        rate.take(now_s=5.0 * restart)
