"""PPO's clipped surrogate, the trust region shared by GRPO and V-trace's later epochs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate.algorithms.shapes import check_shapes


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The value to maximise at each step or token, and where the clip stopped its gradient; shaped as the ratios."""

    values: Tensor
    clipped: Tensor


def clipped_surrogate(ratios: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Surrogate:
    """min(r A, clip(r, 1 − low, 1 + high) A): no gain from moving a probability further than the clip allows.

    Any shape, the same for both; ratios carry the graph. A move against A keeps its gradient, whatever its size:
    only the side in the direction of A is clipped.

    Raises:
        ValueError: the shapes differ.
    Source: Schulman 2017, eq. 7; two sides as in DAPO (Yu 2025, eq. 10).
    """
    check_shapes(tuple(ratios.shape), advantages=advantages)
    lowest, highest = 1.0 - clip_low, 1.0 + clip_high
    values = torch.minimum(ratios * advantages, ratios.clamp(lowest, highest) * advantages)
    stopped_up = (ratios > highest) & (advantages > 0)
    stopped_down = (ratios < lowest) & (advantages < 0)
    return Surrogate(values=values, clipped=stopped_up | stopped_down)
