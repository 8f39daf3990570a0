"""What an update makes of recorded rewards: ``workload.reward``. Records and returns keep the environment's own.

Shapes: T steps, N environments, C columns whose running return is carried from one batch to the next.
"""

import torch
from torch import Tensor

from tidegate.algorithms.recurrence import backward_recurrence
from tidegate.algorithms.reward_scale import RewardSettings, scaled_rewards
from tidegate.algorithms.segment_batch import SegmentBatch

# Of discounted returns without any variance, as of an environment that never rewards.
VARIANCE_FLOOR = 1e-8
# Columns whose running return is carried; wider batches repeat them.
CARRIED_COLUMNS = 256


class ReturnStatistics:
    """Running variance of the discounted return of environments, over all steps so far.

    The return before a batch is unknown: its segments come from any actor, and some before them were dropped. Its
    columns start from the returns at the end of the previous batch's columns, which are as likely as their own: a start
    at zero would make long discounts on short segments look as if they had a small variance.

    Source: the statistic of Gymnasium's ``NormalizeReward``; merged as in Chan 1979.
    """

    def __init__(self, *, device: torch.device) -> None:
        """No steps yet."""

        def zeros(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float64, device=device)

        self._count, self._mean, self._squares = zeros(1), zeros(1), zeros(1)
        self._carried_C = zeros(CARRIED_COLUMNS)

    def tensors(self) -> dict[str, Tensor]:
        """All state, not copied, by name."""
        return {
            "returns/count": self._count,
            "returns/mean": self._mean,
            "returns/squares": self._squares,
            "returns/carried": self._carried_C,
        }

    def add(self, batch: SegmentBatch, *, discount: float) -> None:
        """Count the steps of a batch."""
        returns_TN = discounted_returns(
            batch.rewards_TN.to(torch.float64),
            batch.valid_TN,
            start_N=_resized(self._carried_C, batch.rewards_TN.shape[1]),
            discount=discount,
        )
        ended_N = batch.terminated_TN[-1] | batch.truncated_TN[-1]
        self._carried_C.copy_(_resized(returns_TN[-1] * ~ended_N, CARRIED_COLUMNS))
        returns_B = returns_TN[batch.valid_TN]
        if not len(returns_B):
            return
        mean = returns_B.mean()
        shift = mean - self._mean
        total = self._count + len(returns_B)
        self._squares += (returns_B - mean).square().sum() + shift.square() * self._count * len(
            returns_B
        ) / total
        self._mean += shift * len(returns_B) / total
        self._count.copy_(total)

    def deviation(self) -> Tensor:
        """The standard deviation (1,); 1 before any step."""
        variance = self._squares / self._count.clamp_min(1.0)
        return torch.where(self._count > 0, (variance + VARIANCE_FLOOR).sqrt(), torch.ones_like(variance))


def discounted_returns(rewards_TN: Tensor, valid_TN: Tensor, *, start_N: Tensor, discount: float) -> Tensor:
    """R_t = r_t + γ R_{t−1} within an episode (T, N); rows that are no steps begin the next one at 0.

    ``start_N``: R before the first row.
    """
    decays_TN = discount * valid_TN.to(rewards_TN.dtype)
    increments_TN = torch.where(valid_TN, rewards_TN, torch.zeros_like(rewards_TN))
    increments_TN[0] += decays_TN[0] * start_N
    # The recurrence runs from the last row to the first: reversed, from the first to the last.
    return backward_recurrence(increments_TN.flip(0), decays_TN.flip(0)).flip(0)


def transformed_rewards(rewards_TN: Tensor, settings: RewardSettings, *, deviation: Tensor) -> Tensor:
    """The rewards that targets are computed from: normalised, then scaled, their sign, clipped (``reward_scale``)."""
    if settings.normalise:
        rewards_TN = rewards_TN / deviation.to(rewards_TN.dtype)
    return scaled_rewards(rewards_TN, settings, torch)


def _resized(values: Tensor, size: int) -> Tensor:
    """The values repeated or cut to ``size``."""
    return values.repeat(-(-size // len(values)))[:size]
