"""What a user's curriculum is told, and what is made of its answer: weights of bins that can be drawn by.

A curriculum is a function ``(bins, step, rng)`` that returns a weight for each bin, or a class with it as ``weights``.
"""

import math
from collections.abc import Sequence

import msgspec

# Weights are in the journal's state, and every draw reads them.
BINS_MAX = 1024
NAMES_CHARS_MAX = 1 << 18


class CurriculumBin(msgspec.Struct, frozen=True, array_like=True):
    """One bin of the dataset.

    ``num_prompts``: prompts in it; ``num_drawn``: prompts drawn from it so far; ``success_rate``: of about its last
    50 trajectories, rewards limited to [0, 1]; None before the first.
    """

    name: str
    num_prompts: int
    num_drawn: int = 0
    success_rate: float | None = None


class WeightsRefused(msgspec.Struct, frozen=True):
    """Why an answer is none. ``kind``: a word for failures of one sort."""

    kind: str
    why: str


def checked_weights(answer: Sequence[float], names: Sequence[str]) -> dict[str, float] | WeightsRefused:
    """The weight of each bin, the largest one 1; refused where no bin could be drawn by them."""
    if len(answer) != len(names):
        return WeightsRefused("length", f"it returned {len(answer)} weights, and there are {len(names)} bins")
    for name, weight in zip(names, answer, strict=True):
        if not math.isfinite(weight):
            return WeightsRefused(
                "range", f"its weight of bin {name:.40} is {weight}, and a weight is finite"
            )
        if weight < 0.0:
            return WeightsRefused("range", f"its weight of bin {name:.40} is {weight:g}, below 0")
    largest = max(answer, default=0.0)
    if largest <= 0.0:
        return WeightsRefused("zero", "all of its weights are 0, so no bin can be drawn")
    return {name: weight / largest for name, weight in zip(names, answer, strict=True)}


def too_many_bins(names: Sequence[str]) -> str:
    """Why a curriculum of one's own cannot choose between these bins; empty where it can."""
    if len(names) > BINS_MAX:
        return (
            f"the dataset has {len(names):,} bins, and a curriculum of one's own chooses between {BINS_MAX:,}"
        )
    if sum(map(len, names)) > NAMES_CHARS_MAX:
        return f"the names of the bins have more than {NAMES_CHARS_MAX:,} characters together"
    return ""
