"""Drawing tokens from logprobs, each row from a stream of numbers of its own.

The n-th token of a text always meets the n-th number of its seed, whatever is written beside it and whoever began it;
so a text that was interrupted goes on as it would have, as far as the policy is the same.

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

# One less than float64 holds, so that a number times a sum is below the sum however it is rounded.
UNIFORM_BITS = 52
BLOCK = 256


def uniforms(seeds_R: NDArray[np.uint64], positions_R: NDArray[np.int64]) -> NDArray[np.float64]:
    """The number in [0, 1) of each seed at a position.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64, whose n-th output
    is a function of seed and n).
    """
    with np.errstate(over="ignore"):
        state = _mixed(seeds_R) + (positions_R.astype(np.uint64) + np.uint64(1)) * GOLDEN_GAMMA
        return (_mixed(state) >> np.uint64(64 - UNIFORM_BITS)).astype(np.float64) * 2.0**-UNIFORM_BITS


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * MIX_1
    state = (state ^ (state >> np.uint64(27))) * MIX_2
    return state ^ (state >> np.uint64(31))


def draw_tokens(logprobs_RV: Tensor, uniforms_R1: Tensor) -> Tensor:
    """One token (R,) a row with exactly the probabilities given: where the cumulated ones pass the uniform number.

    Numbers in [0, 1) in float64, as float32 sums of 49,152 entries would move unlikely tokens. Of a large vocabulary a
    block is drawn first and then a token of it: cumulating 32 rows of 49,152 took 15 ms of a step's 165, and
    ``torch.multinomial`` takes 35.
    """
    probabilities_RV = logprobs_RV.exp()
    vocabulary = probabilities_RV.shape[1]
    if vocabulary <= BLOCK:
        return _invert(probabilities_RV, uniforms_R1)[0][:, 0]
    blocks_RNB = F.pad(probabilities_RV, (0, -vocabulary % BLOCK)).unflatten(1, (-1, BLOCK))
    block_R1, rest_R1 = _invert(blocks_RNB.sum(dim=-1), uniforms_R1)
    within_RB = blocks_RNB[torch.arange(len(block_R1), device=block_R1.device), block_R1[:, 0]]
    offset_R1, _ = _invert(within_RB, rest_R1)
    return (block_R1 * BLOCK + offset_R1)[:, 0]


def _invert(weights_RN: Tensor, uniforms_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Which entry each number falls on, and how far into it: in [0, 1) and uniform again."""
    cumulated_RN = weights_RN.cumsum(dim=-1, dtype=torch.float64)
    targets_R1 = uniforms_R1 * cumulated_RN[:, -1:]
    # Entries of weight 0 are never the first to pass a target; and a target stays below the sum, see UNIFORM_BITS.
    # Rows of NaN fall on the last: their logprobs show it.
    index_R1 = torch.searchsorted(cumulated_RN, targets_R1, right=True).clamp_max(weights_RN.shape[1] - 1)
    before_R1 = cumulated_RN.gather(1, (index_R1 - 1).clamp_min(0)).masked_fill(index_R1 == 0, 0.0)
    weight_R1 = cumulated_RN.gather(1, index_R1) - before_R1
    return index_R1, ((targets_R1 - before_R1) / weight_R1).clamp_max(1.0 - 2.0**-UNIFORM_BITS)
