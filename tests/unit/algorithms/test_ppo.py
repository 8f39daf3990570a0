import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from tidegate.algorithms.ppo import clipped_surrogate

LOW, HIGH = 0.2, 0.3


def value_and_slope(ratio: float, advantage: float) -> tuple[float, float, bool]:
    ratios = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    surrogate = clipped_surrogate(
        ratios, torch.tensor([advantage], dtype=torch.float64), clip_low=LOW, clip_high=HIGH
    )
    (slope,) = torch.autograd.grad(surrogate.values.sum(), ratios)
    return float(surrogate.values.detach()), float(slope), bool(surrogate.clipped)


@given(st.floats(0.01, 10.0), st.floats(-5.0, 5.0).filter(lambda advantage: abs(advantage) > 1e-3))
def test_gradient_stops_only_where_the_advantage_would_reward_going_further(
    ratio: float, advantage: float
) -> None:
    value, slope, clipped = value_and_slope(ratio, advantage)
    past = ratio > 1.0 + HIGH if advantage > 0 else ratio < 1.0 - LOW
    assert clipped == past
    assert slope == (0.0 if past else pytest.approx(advantage))
    bound = advantage * min(max(ratio, 1.0 - LOW), 1.0 + HIGH)
    assert value == pytest.approx(min(ratio * advantage, bound))


@given(st.floats(0.01, 10.0), st.floats(-5.0, 5.0))
def test_surrogate_never_promises_more_than_the_ratio_does(ratio: float, advantage: float) -> None:
    value, _, _ = value_and_slope(ratio, advantage)
    assert value <= ratio * advantage + 1e-12


def test_at_ratio_1_it_is_the_policy_gradient() -> None:
    assert value_and_slope(1.0, -0.7) == (-0.7, -0.7, False)


def test_surrogate_refuses_to_broadcast() -> None:
    with pytest.raises(ValueError, match="advantages"):
        clipped_surrogate(torch.ones(3, 2), torch.ones(3, 1), clip_low=LOW, clip_high=HIGH)
