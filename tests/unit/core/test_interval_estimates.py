"""Interquartile means and their intervals."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.interval_estimates import interquartile_mean, interval_estimate


def column(*scores: float) -> np.ndarray:
    return np.array(scores)[:, None]


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ((7.0,), 7.0),
        ((1.0, 2.0, 9.0), 4.0),  # of up to 3 runs nothing is cut
        ((0.0, 1.0, 3.0, 100.0), 2.0),
        ((-50.0, 1.0, 2.0, 3.0, 100.0), 2.0),
        ((9.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 90.0), 3.5),
    ],
)
def test_highest_and_lowest_quarter_are_left_out(scores: tuple[float, ...], mean: float) -> None:
    assert interquartile_mean(column(*scores)) == pytest.approx([mean])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_order_of_the_runs_does_not_matter(scores: list[float], random: Random) -> None:
    shuffled = list(scores)
    random.shuffle(shuffled)
    assert interquartile_mean(column(*shuffled)) == pytest.approx(interquartile_mean(column(*scores)))


def test_each_point_of_a_curve_is_estimated_by_itself() -> None:
    scores_RX = np.array([[0.0, 10.0], [2.0, 30.0]])
    assert interquartile_mean(scores_RX).tolist() == [1.0, 20.0]


@pytest.mark.slow
def test_interval_covers_the_true_value_about_as_often_as_it_says() -> None:
    """Of normal scores, whose interquartile mean is their mean; few runs make the bootstrap a little too narrow."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        estimate = interval_estimate(rng.normal(5.0, 1.0, size=(12, 1)), rng=rng, num_resamples=200)
        covered += estimate.low_X[0] <= 5.0 <= estimate.high_X[0]
    assert 0.85 * 200 <= covered <= 0.99 * 200


def test_same_seed_gives_the_same_interval() -> None:
    scores = column(*range(10))
    first = interval_estimate(scores, rng=np.random.default_rng(1))
    second = interval_estimate(scores, rng=np.random.default_rng(1))
    assert (first.low_X, first.high_X) == (second.low_X, second.high_X)
    assert first.low_X < first.middle_X < first.high_X


def test_interval_of_one_run_is_that_run() -> None:
    estimate = interval_estimate(column(4.0), rng=np.random.default_rng(1))
    assert (estimate.low_X, estimate.middle_X, estimate.high_X) == (4.0, 4.0, 4.0)
