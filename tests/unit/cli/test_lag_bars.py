"""The bars of the report's histogram of lags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cli.report.plots import LAG_BARS_MAX, lag_bars


def test_small_budget_has_a_bar_for_each_lag_and_a_line_after_the_last_allowed() -> None:
    counts, limit_after = lag_bars({0: 3, 2: 1}, budget=4)
    assert counts == {"0": 3.0, "1": 0.0, "2": 1.0, "3": 0.0, "4": 0.0}
    assert limit_after == 5


def test_budget_of_replay_far_beyond_every_lag_is_not_drawn() -> None:
    counts, limit_after = lag_bars({0: 3, 90: 1}, budget=100_000)
    assert list(counts)[:2] == ["0-1", "2-3"]
    assert limit_after is None


@pytest.mark.parametrize("budget", [0, 10, 1_000_000_000])
def test_run_that_trained_nothing_has_no_bars(budget: int) -> None:
    assert lag_bars({}, budget=budget) == ({}, None)


@given(st.dictionaries(st.integers(0, 10**9), st.integers(1, 100), min_size=1), st.integers(0, 10**9))
def test_every_trajectory_is_in_one_of_a_bounded_number_of_bars(by_lag: dict[int, int], budget: int) -> None:
    counts, limit_after = lag_bars(by_lag, budget=budget)
    assert len(counts) <= LAG_BARS_MAX
    assert sum(counts.values()) == sum(by_lag.values())
    assert limit_after is None or limit_after >= 1
