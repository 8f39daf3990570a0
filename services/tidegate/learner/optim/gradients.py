"""One gradient step, as every trainer makes it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from tidegate.algorithms.loss import Loss


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Use ``learning_rate`` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def gradient_step(
    loss: Loss, optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], *, max_grad_norm: float
) -> dict[str, float]:
    """Follow the gradient once, scaled down to ``max_grad_norm``; the loss' metrics, ``loss`` and ``grad_norm``."""
    optimizer.zero_grad(set_to_none=True)
    loss.total.backward()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimizer.step()
    return {"loss": float(loss.total.detach()), "grad_norm": float(norm), **loss.metrics}


def mean_of(steps: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric over gradient steps."""
    return {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]} if steps else {}
