"""Rewards of an update: the order of the changes, and running statistics of discounted returns."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.support.segments import random_segment
from tidegate.algorithms.rewards import (
    CARRIED_COLUMNS,
    ReturnStatistics,
    discounted_returns,
    transformed_rewards,
)
from tidegate.algorithms.segment_batch import SegmentBatch, stack_segments
from tidegate.runtime.environment_settings import RewardConfig

CPU = torch.device("cpu")
DISCOUNT = 0.9


def batch(seed: int, *, num_steps: int = 12, num_envs: int = 5) -> SegmentBatch:
    return stack_segments([random_segment(seed, num_steps=num_steps, num_envs=num_envs)], device=CPU)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (RewardConfig(), [-3.0, 0.0, 0.5, 8.0]),
        (RewardConfig(scale=2.0), [-6.0, 0.0, 1.0, 16.0]),
        (RewardConfig(clip=1.0), [-1.0, 0.0, 0.5, 1.0]),
        (RewardConfig(sign=True), [-1.0, 0.0, 1.0, 1.0]),
        (RewardConfig(normalise=True, scale=2.0, clip=3.0), [-1.5, 0.0, 0.25, 3.0]),
    ],
)
def test_rewards_are_normalised_scaled_and_clipped_in_this_order(
    settings: RewardConfig, expected: list[float]
) -> None:
    rewards = torch.tensor([[-3.0, 0.0, 0.5, 8.0]])
    deviation = torch.tensor([4.0], dtype=torch.float64)
    found = transformed_rewards(rewards, settings, deviation=deviation)
    assert found.dtype == torch.float32
    assert found[0].numpy().tolist() == pytest.approx(expected)


@given(st.integers(0, 2**31), st.floats(-5.0, 5.0))
def test_discounted_returns_equal_a_walk_over_every_step(seed: int, start: float) -> None:
    given_ = batch(seed)
    starts_N = torch.full((5,), start, dtype=torch.float64)
    found = discounted_returns(
        given_.rewards_TN.double(), given_.valid_TN, start_N=starts_N, discount=DISCOUNT
    ).numpy()
    for n in range(5):
        running = start
        for t in range(12):
            # A row that is no step follows an episode's end.
            stepped = DISCOUNT * running + float(given_.rewards_TN[t, n])
            running = stepped if given_.valid_TN[t, n] else 0.0
            assert found[t, n] == pytest.approx(running, abs=1e-9)


def test_statistics_of_many_batches_are_those_of_all_their_returns() -> None:
    statistics = ReturnStatistics(device=CPU)
    carried = torch.zeros(5, dtype=torch.float64)
    everything: list[Tensor] = []
    for seed in range(20):
        given_ = batch(seed)
        returns_TN = discounted_returns(
            given_.rewards_TN.double(), given_.valid_TN, start_N=carried, discount=DISCOUNT
        )
        carried = returns_TN[-1] * ~(given_.terminated_TN[-1] | given_.truncated_TN[-1])
        everything.append(returns_TN[given_.valid_TN])
        statistics.add(given_, discount=DISCOUNT)
    expected = torch.cat(everything).std(correction=0)
    assert float(statistics.deviation()) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.slow
def test_short_segments_show_the_deviation_of_endless_episodes() -> None:
    """Rewards of deviation 1 for ever: returns have 1 / sqrt(1 - γ²), far more than one segment shows from zero."""
    rng = np.random.default_rng(0)
    statistics = ReturnStatistics(device=CPU)
    for _ in range(400):
        segment = random_segment(0, num_steps=8, num_envs=16)
        segment["rewards"] = rng.standard_normal((8, 16)).astype(np.float32)
        segment["valid"][:] = True
        segment["terminated"][:] = segment["truncated"][:] = False
        statistics.add(stack_segments([segment], device=CPU), discount=0.99)
    assert float(statistics.deviation()) == pytest.approx(1.0 / np.sqrt(1.0 - 0.99**2), rel=0.1)


def test_a_batch_may_have_any_number_of_columns() -> None:
    statistics = ReturnStatistics(device=CPU)
    for seed, num_envs in enumerate((1, 7, CARRIED_COLUMNS + 3)):
        statistics.add(batch(seed, num_envs=num_envs), discount=DISCOUNT)
    assert bool(torch.isfinite(statistics.deviation()).all())


def test_without_steps_or_variance_nothing_is_divided_by_zero() -> None:
    statistics = ReturnStatistics(device=CPU)
    assert float(statistics.deviation()) == 1.0
    none = batch(0)
    statistics.add(replace(none, valid_TN=torch.zeros_like(none.valid_TN)), discount=DISCOUNT)
    assert float(statistics.deviation()) == 1.0
    statistics.add(replace(none, rewards_TN=torch.zeros_like(none.rewards_TN)), discount=DISCOUNT)
    assert 0.0 < float(statistics.deviation()) < 1e-3
