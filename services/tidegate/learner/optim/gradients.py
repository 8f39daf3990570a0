"""One gradient step, as every trainer makes it."""

import torch

from tidegate.algorithms.loss import Loss
from tidegate.learner.optim.adam import AdamW


def gradient_step(loss: Loss, optimizer: AdamW, *, max_grad_norm: float) -> dict[str, float]:
    """Follow the gradient once, scaled down to ``max_grad_norm``; the loss' metrics, ``loss`` and ``grad_norm``."""
    optimizer.clear_gradients()
    loss.total.backward()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)
    norm = torch.nn.utils.clip_grad_norm_(optimizer.parameters.values(), max_grad_norm)
    optimizer.step()
    return {"loss": float(loss.total.detach()), "grad_norm": float(norm), **loss.metrics}


def mean_of(steps: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric over gradient steps."""
    return {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]} if steps else {}
