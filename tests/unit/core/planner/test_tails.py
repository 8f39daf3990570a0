"""The slowest of K against closed forms, an integral written differently, and draws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.distributions import (
    Durations,
    Exponential,
    Fixed,
    Histogram,
    Lognormal,
    check_histogram,
    histogram_of,
)
from tidegate.core.errors import ConfigError
from tidegate.core.planner.tails import harmonic, mean_of_max, tail_of


def survival_integral(*, mean_s: float, cv: float, num_draws: int) -> float:
    """E[max] = ∫ 1 − F(x)^K dx, in x itself and by trapezoids: another formula than the one that is tested."""
    s = math.sqrt(math.log1p(cv * cv))
    m = math.log(mean_s) - s * s / 2
    x = np.exp(np.linspace(m - 12 * s, m + 14 * s, 40_001))
    below = np.array([0.5 * math.erfc(-(math.log(each) - m) / (s * math.sqrt(2))) for each in x])
    return float(x[0] + np.trapezoid(1 - below**num_draws, x))


def test_slowest_of_sixteen_lognormals_is_the_numerical_integral_within_two_percent() -> None:
    tail = tail_of(Lognormal(1.0, 1.0), num_draws=16)
    assert tail.max_s == pytest.approx(survival_integral(mean_s=1.0, cv=1.0, num_draws=16), rel=1e-6)
    assert tail.max_s == pytest.approx(3.4351, rel=1e-4)
    draws = np.random.default_rng(7).lognormal(-math.log(2) / 2, math.sqrt(math.log(2)), (200_000, 16))
    assert draws.max(axis=1).mean() == pytest.approx(tail.max_s, rel=0.02)


def test_extreme_value_approximations_are_reported_with_their_errors() -> None:
    tail = tail_of(Lognormal(1.0, 1.0), num_draws=16)
    s = math.sqrt(math.log(2))
    assert tail.leading_s == pytest.approx(math.exp(s * math.sqrt(2 * math.log(16)) - s * s / 2))
    assert tail.leading_error == pytest.approx(0.462, abs=0.001), "first term alone: a rough estimate"
    assert tail.gumbel_error == pytest.approx(0.086, abs=0.001)


@pytest.mark.parametrize(
    ("num_draws", "leading_error", "gumbel_error"), [(8, -0.235, -0.0225), (128, -0.107, -0.0007)]
)
def test_exponential_maximum_is_the_harmonic_number(
    num_draws: int, leading_error: float, gumbel_error: float
) -> None:
    tail = tail_of(Exponential(0.040), num_draws=num_draws)
    assert tail.max_s == pytest.approx(0.040 * sum(1 / k for k in range(1, num_draws + 1)))
    assert tail.leading_error == pytest.approx(leading_error, abs=5e-4)
    assert tail.gumbel_error == pytest.approx(gumbel_error, abs=5e-4)


@given(mean_s=st.floats(0.001, 100.0), cv=st.floats(0.01, 5.0))
def test_slower_of_two_lognormals_has_a_closed_form(mean_s: float, cv: float) -> None:
    """E max(X, Y) = 2·μ·Φ(s/√2)."""
    s = math.sqrt(math.log1p(cv * cv))
    assert mean_of_max(Lognormal(mean_s, cv), num_draws=2) == pytest.approx(
        mean_s * math.erfc(-s / 2), rel=1e-9
    )


DURATIONS = st.one_of(
    st.builds(Exponential, st.floats(0.001, 100.0)),
    st.builds(Lognormal, st.floats(0.001, 100.0), st.floats(0.0, 10.0)),
    st.builds(histogram_of, st.lists(st.floats(0.001, 100.0), min_size=1, max_size=30)),
)


@given(durations=DURATIONS, num_draws=st.integers(1, 200), more=st.integers(1, 200))
def test_slowest_of_more_is_never_faster_and_of_one_is_the_mean(
    durations: Durations, num_draws: int, more: int
) -> None:
    slowest = mean_of_max(durations, num_draws=num_draws)
    assert mean_of_max(durations, num_draws=1) == pytest.approx(durations.mean_s, rel=1e-6)
    assert slowest <= mean_of_max(durations, num_draws=num_draws + more) * (1 + 1e-9)


def test_constants_have_no_tail() -> None:
    assert mean_of_max(Fixed(2.0), num_draws=1000) == 2.0


def test_measured_maximum_is_drawn_with_replacement() -> None:
    """Of two draws from {1, 3}: 1 with a quarter, 3 with the rest. No approximation applies to a histogram."""
    tail = tail_of(histogram_of([3.0, 1.0]), num_draws=2)
    assert tail.max_s == pytest.approx(0.25 * 1 + 0.75 * 3)
    assert (tail.leading_s, tail.gumbel_error) == (None, None)


def test_limit_law_without_a_mean_is_not_shown() -> None:
    assert tail_of(Lognormal(1.0, 10.0), num_draws=4).gumbel_s is None
    assert tail_of(Lognormal(1.0, 1.0), num_draws=1).gumbel_s is None


def test_harmonic_numbers() -> None:
    assert harmonic(8) == pytest.approx(761 / 280)
    assert harmonic(10_001) == pytest.approx(harmonic(10_000) + 1 / 10_001, rel=1e-14), (
        "where the series ends"
    )


def test_histogram_draws_are_uniform_inside_each_bin() -> None:
    """Of two uniforms on [0, 3]: 2. Of a histogram with a gap, what draws come to."""
    assert mean_of_max(Histogram(edges_s=(0.0, 3.0), counts=(5.0,)), num_draws=2) == pytest.approx(2.0)
    gapped = Histogram(edges_s=(0.0, 1.0, 2.0, 4.0), counts=(3.0, 0.0, 1.0))
    rng = np.random.default_rng(7)
    draws = np.where(
        rng.random((200_000, 8)) < 0.75, rng.random((200_000, 8)), 2 + 2 * rng.random((200_000, 8))
    )
    assert mean_of_max(check_histogram(gapped), num_draws=8) == pytest.approx(
        draws.max(axis=1).mean(), rel=0.01
    )


def test_invalid_input_is_refused_with_a_message() -> None:
    with pytest.raises(ConfigError, match="no measured duration"):
        histogram_of([])
    with pytest.raises(ConfigError, match="-1 s is none"):
        histogram_of([1.0, -1.0])
    with pytest.raises(ConfigError, match="slowest of 0"):
        mean_of_max(Exponential(1.0), num_draws=0)
