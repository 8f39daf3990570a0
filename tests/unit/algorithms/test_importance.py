import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from tidegate.algorithms.importance import (
    LOG_RATIO_MAX,
    effective_sample_size,
    k3_divergence,
    mismatch_by_lag,
    probability_ratios,
    truncated_fraction,
)

WEIGHTS = st.lists(st.floats(1e-6, 1e8), min_size=1, max_size=50)


@given(WEIGHTS)
def test_effective_sample_size_is_a_share_of_the_samples(weights: list[float]) -> None:
    found = effective_sample_size(torch.tensor(weights))
    assert 1.0 / len(weights) - 1e-4 <= found <= 1.0 + 1e-4
    expected = math.fsum(weights) ** 2 / (len(weights) * math.fsum(weight**2 for weight in weights))
    assert found == pytest.approx(expected, rel=1e-3)


@given(st.integers(1, 50), st.floats(1e-6, 1e8))
def test_equal_weights_make_every_sample_count(count: int, weight: float) -> None:
    assert effective_sample_size(torch.full((count,), weight)) == pytest.approx(1.0, abs=1e-5)


def test_one_weight_above_all_leaves_one_sample() -> None:
    assert effective_sample_size(torch.tensor([math.exp(LOG_RATIO_MAX), 1.0, 1.0, 1.0])) == pytest.approx(
        0.25
    )


def test_nothing_measured_is_nothing_wrong() -> None:
    assert effective_sample_size(torch.empty(0)) == 1.0
    assert truncated_fraction(torch.empty(0), limit=1.0) == 0.0


def test_effective_sample_size_refuses_a_table() -> None:
    with pytest.raises(ValueError, match="weights_N"):
        effective_sample_size(torch.ones(2, 2))


def test_ratios_divide_probabilities_and_stay_finite() -> None:
    new = torch.tensor([0.5, 0.2]).log()
    old = torch.tensor([0.25, 0.4]).log()
    torch.testing.assert_close(probability_ratios(new, old), torch.tensor([2.0, 0.5]))
    assert probability_ratios(torch.tensor([0.0]), torch.tensor([-500.0])).isfinite().all()


def test_ratios_refuse_to_broadcast() -> None:
    with pytest.raises(ValueError, match="old_logprobs"):
        probability_ratios(torch.zeros(4, 3), torch.zeros(4, 1))


def test_truncated_fraction_counts_what_is_above_the_limit_but_not_rounding() -> None:
    assert truncated_fraction(torch.tensor([0.5, 1.0 + 1e-5, 1.2, 3.0]), limit=1.0) == 0.5


@given(st.lists(st.floats(-30.0, 30.0), min_size=1, max_size=50))
def test_divergence_estimates_are_never_negative(log_ratios: list[float]) -> None:
    assert (k3_divergence(torch.tensor(log_ratios)) >= 0.0).all()


def test_divergence_estimate_is_unbiased() -> None:
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    q = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    expected = (p * (p / q).log()).sum()
    torch.testing.assert_close((p * k3_divergence(q.log() - p.log())).sum(), expected)


def test_mismatch_of_the_same_version_is_measured_apart_from_older_ones() -> None:
    log_ratios = torch.tensor([0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    gaps = torch.tensor([0, 0, 1, 2, 3, 8, 40])
    found = mismatch_by_lag(log_ratios, gaps)
    each = [float(value) for value in k3_divergence(log_ratios)]
    assert found == pytest.approx(
        {
            "mismatch_kl_lag_0": 0.0,
            "mismatch_kl_lag_1": each[2],
            "mismatch_kl_lag_2-3": (each[3] + each[4]) / 2,
            "mismatch_kl_lag_8-15": each[5],
            "mismatch_kl_lag_16+": each[6],
        }
    )
    assert not mismatch_by_lag(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
