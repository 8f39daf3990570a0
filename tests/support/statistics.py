"""Statistical tests with fixed seeds."""

import math

import numpy as np

# A standard normal exceeds this once in ten million: a seeded test that passes does so because the frequencies fit.
NORMAL_QUANTILE = 5.2


def chi_square_of(observed: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic of counts beside their probabilities, of which none is zero."""
    expected = probabilities * observed.sum()
    return float(np.sum((observed - expected) ** 2 / expected))


def chi_square_limit(degrees: int) -> float:
    """Its quantile at ``NORMAL_QUANTILE`` (Wilson and Hilferty 1931)."""
    spread = 2.0 / (9.0 * degrees)
    return degrees * (1.0 - spread + NORMAL_QUANTILE * math.sqrt(spread)) ** 3
