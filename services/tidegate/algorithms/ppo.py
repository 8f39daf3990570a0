"""PPO's clipped surrogate, the trust region that GRPO and V-trace's later epochs share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate.algorithms.shapes import check_shapes


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What to maximise at each step or token, and where a clip stopped its gradient; in the shape of the ratios."""

    values: Tensor
    clipped: Tensor


def clipped_surrogate(ratios: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Surrogate:
    """min(r A, clip(r, 1 − low, 1 + high) A): no gain from moving a probability further than the clip allows.

    Any shape, the same for both; ratios carry the graph. A move that made things worse keeps its gradient, whatever
    its size: only the side where A would reward more of it is clipped.

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
