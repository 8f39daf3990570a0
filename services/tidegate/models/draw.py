"""Drawing tokens from logprobs, each row from a stream of numbers of its own.

The n-th token of a text always meets the n-th number of its seed, whatever is written beside it and whoever began it;
so a text that was interrupted goes on as it would have, as far as the policy is the same.

Shapes: R rows, V vocabulary.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Constants of SplitMix64.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds_R: NDArray[np.uint64], positions_R: NDArray[np.int64]) -> NDArray[np.float64]:
    """The number in [0, 1) of each seed at a position.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64, whose n-th output
    is a function of seed and n).
    """
    with np.errstate(over="ignore"):
        state = _mixed(seeds_R) + (positions_R.astype(np.uint64) + np.uint64(1)) * GOLDEN_GAMMA
        return (_mixed(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * MIX_1
    state = (state ^ (state >> np.uint64(27))) * MIX_2
    return state ^ (state >> np.uint64(31))


def draw_tokens(logprobs_RV: Tensor, uniforms_R1: Tensor) -> Tensor:
    """One token (R,) a row with exactly the probabilities given: where the cumulated ones pass the uniform number.

    In float64, as float32 sums of 49,152 entries would move unlikely tokens; 4 ms for 32 such rows, where
    ``torch.multinomial`` takes 35.
    """
    cumulated_RV = logprobs_RV.exp().cumsum(dim=-1, dtype=torch.float64)
    # The sum is 1 but for rounding. A token of probability 0 is never the first to pass.
    tokens_R1 = torch.searchsorted(cumulated_RV, uniforms_R1 * cumulated_RV[:, -1:], right=True)
    return tokens_R1[:, 0].clamp_max(logprobs_RV.shape[1] - 1)
