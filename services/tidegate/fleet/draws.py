"""Endless draws of durations, in blocks: ``numpy`` draws thousands as fast as Python reads one."""

import math
from collections.abc import Iterator
from itertools import repeat
from typing import TypeAlias

import numpy as np

from tidegate.core.distributions import Durations, Exponential, Fixed, Histogram, Lognormal

# Large enough that a draw costs as much as reading a list; small enough that a short run does not wait for it.
BLOCK = 4096

Draws: TypeAlias = Iterator[float]


def draws(durations: Durations, rng: np.random.Generator) -> Draws:
    """An endless stream of durations in seconds."""
    if isinstance(durations, Fixed):
        return repeat(durations.value_s)
    return _blocks(durations, rng)


def _blocks(durations: Exponential | Lognormal | Histogram, rng: np.random.Generator) -> Draws:
    while True:
        yield from _block(durations, rng).tolist()


def _block(
    durations: Exponential | Lognormal | Histogram, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    match durations:
        case Exponential(mean_s=mean_s):
            return rng.exponential(mean_s, BLOCK)
        case Lognormal(mean_s=mean_s):
            sigma = durations.sigma
            return rng.lognormal(math.log(mean_s) - sigma**2 / 2, sigma, BLOCK)
        case Histogram():
            edges = np.asarray(durations.edges_s)
            shares = np.asarray(durations.counts)
            bins = rng.choice(len(shares), size=BLOCK, p=shares / shares.sum())
            return edges[bins] + (edges[bins + 1] - edges[bins]) * rng.random(BLOCK)
