"""Samples tokens from logprobs, each row with a random stream of its own.

The n-th token of a text always uses the n-th number of its seed, independent of other rows and of the process; so a
resumed text continues exactly as it would have, as far as the policy is the same.

Shapes: R rows, V vocabulary.
"""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from numpy.typing import NDArray
from torch import Tensor

# Constants of SplitMix64.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)

# One bit less than float64 has, so that a number times a sum is below the sum under any rounding.
UNIFORM_BITS = 52
BLOCK = 256


def uniforms(seeds_R: NDArray[np.uint64], positions_R: NDArray[np.int64]) -> NDArray[np.float64]:
    """The random number in [0, 1) of each seed at a position.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64, whose n-th output
    is a function of seed and n).
    """
    # Integer arrays wrap around at 64 bits, as the algorithm requires.
    state = _mixed(seeds_R) + (positions_R.astype(np.uint64) + np.uint64(1)) * GOLDEN_GAMMA
    return (_mixed(state) >> np.uint64(64 - UNIFORM_BITS)).astype(np.float64) * 2.0**-UNIFORM_BITS


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * MIX_1
    state = (state ^ (state >> np.uint64(27))) * MIX_2
    return state ^ (state >> np.uint64(31))


def draw_tokens(logprobs_RV: Tensor, uniforms_R1: Tensor) -> Tensor:
    """Sample one token (R,) per row by inverse transform: where the cumulative probability passes the uniform number.

    In float64, as float32 sums of 49,152 entries would shift unlikely tokens. With a large vocabulary a block is
    sampled first and then a token of it: cumulating 32 rows of 49,152 took 15 ms of a step's 165, and
    ``torch.multinomial`` takes 35.
    """
    probabilities_RV = logprobs_RV.exp()
    vocabulary = probabilities_RV.shape[1]
    if vocabulary <= BLOCK:
        return _find(*_cumulated(probabilities_RV, uniforms_R1))[:, 0]
    padded_RV = F.pad(probabilities_RV, (0, -vocabulary % BLOCK))
    blocks_RNB = padded_RV.view(len(padded_RV), -1, BLOCK)
    cumulated_RN, targets_R1 = _cumulated(blocks_RNB.sum(dim=-1), uniforms_R1)
    block_R1 = _find(cumulated_RN, targets_R1)
    before_R1 = cumulated_RN.gather(1, (block_R1 - 1).clamp_min(0)).masked_fill(block_R1 == 0, 0.0)
    # The position of the number inside its block is uniform again.
    rest_R1 = (targets_R1 - before_R1) / (cumulated_RN.gather(1, block_R1) - before_R1)
    within_RB = blocks_RNB[torch.arange(len(block_R1), device=block_R1.device), block_R1[:, 0]]
    largest = 1.0 - 2.0**-UNIFORM_BITS
    offset_R1 = _find(*_cumulated(within_RB, rest_R1.clamp_max(largest)))
    return (block_R1 * BLOCK + offset_R1)[:, 0]


def _cumulated(weights_RN: Tensor, uniforms_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Cumulative sums, and each number's target on them: below the last one, see UNIFORM_BITS."""
    cumulated_RN = weights_RN.cumsum(dim=-1, dtype=torch.float64)
    return cumulated_RN, uniforms_R1 * cumulated_RN[:, -1:]


def _find(cumulated_RN: Tensor, targets_R1: Tensor) -> Tensor:
    """The first entry (R, 1) whose sum passes the target; never one of weight 0.

    Rows of NaN select the last: their logprobs reveal it.
    """
    return torch.searchsorted(cumulated_RN, targets_R1, right=True).clamp_max(cumulated_RN.shape[1] - 1)
