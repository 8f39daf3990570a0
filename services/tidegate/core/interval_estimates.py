"""Interquartile means of scores over runs, with bootstrap intervals.

With the few runs that reinforcement learning can afford, a mean follows one lucky seed and a median ignores half of
the data; the interquartile mean is the compromise of rliable. Definitions: Agarwal et al. 2021, "Deep Reinforcement
Learning at the Edge of the Statistical Precipice", sections 4.1 and 4.3.

Shapes: R runs of one configuration, X points at which each was scored.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

TRIMMED_SHARE = 0.25
CONFIDENCE = 0.95
NUM_RESAMPLES = 2_000


class IntervalEstimate(msgspec.Struct, frozen=True, eq=False):
    """An interquartile mean and the bounds of its interval; each (X,)."""

    middle_X: NDArray[np.float64]
    low_X: NDArray[np.float64]
    high_X: NDArray[np.float64]


def interquartile_mean(scores_RX: NDArray[Any]) -> NDArray[np.float64]:
    """The mean (X,) without the highest and the lowest quarter of the runs, rounded down; of up to 3 runs the mean."""
    num_cut = int(TRIMMED_SHARE * len(scores_RX))
    ordered_RX = np.sort(np.asarray(scores_RX, np.float64), axis=0)
    return ordered_RX[num_cut : len(ordered_RX) - num_cut].mean(axis=0)


def interval_estimate(
    scores_RX: NDArray[Any],
    *,
    rng: np.random.Generator,
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
) -> IntervalEstimate:
    """The interquartile mean with its percentile bootstrap interval: runs are resampled whole, with replacement.

    With one run the interval is that run; with few it is too narrow, as every bootstrap is.
    """
    num_runs = len(scores_RX)
    resampled_BX = np.stack([
        interquartile_mean(scores_RX[rng.integers(num_runs, size=num_runs)]) for _ in range(num_resamples)
    ])  # fmt: skip
    tail = (1.0 - confidence) / 2.0
    low_X, high_X = np.quantile(resampled_BX, (tail, 1.0 - tail), axis=0)
    return IntervalEstimate(middle_X=interquartile_mean(scores_RX), low_X=low_X, high_X=high_X)
