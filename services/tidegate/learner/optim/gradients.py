"""One gradient step, for every trainer.

Ranks share a step: each computes the network's outputs for its rows, all gather them, and each computes the loss over
the rows of all. The gradient of that loss by a rank's own outputs is then back-propagated through the network, and the
ranks' gradients are summed. So an objective reads the whole minibatch (denominators, masks, groups, sequence ratios)
and is independent of ranks, and the sum is the gradient of a single process. The cost is one more exchange of the
outputs, one or a few numbers per step or token, which is small beside the gradients.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from tidegate.algorithms.loss import Loss
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.ranks.port import Ranks


def gradient_step(loss: Loss, optimizer: AdamW, *, max_grad_norm: float) -> dict[str, float]:
    """One optimiser step with the gradient clipped to ``max_grad_norm``; the loss' metrics, ``loss``, ``grad_norm``."""
    optimizer.clear_gradients()
    loss.total.backward()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)
    return _optimizer_step(loss, optimizer, max_grad_norm=max_grad_norm)


def gradient_step_of_sum(
    losses: Iterable[Tensor], optimizer: AdamW, *, max_grad_norm: float
) -> dict[str, float]:
    """``gradient_step`` of the sum of ``losses``, each of which is back-propagated before the next one is computed."""
    optimizer.clear_gradients()
    total = 0.0
    for loss in losses:
        loss.backward()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)
        total += float(loss.detach())
    return _optimizer_step(
        Loss(total=torch.tensor(total), metrics={}), optimizer, max_grad_norm=max_grad_norm
    )


def shared_gradient_step(
    outputs: Tensor,
    loss_of: Callable[[Tensor], Loss],
    optimizer: AdamW,
    *,
    rows_B: Tensor,
    num_rows: int,
    ranks: Ranks,
    max_grad_norm: float,
) -> dict[str, float]:
    """``gradient_step`` with the gradient of ``loss_of`` the outputs of all ranks.

    ``outputs``: (B, ...) of this rank's rows, with their graph; ``rows_B``: their positions in the minibatch of
    ``num_rows``. A rank may have none.

    Raises:
        RankLostError: a rank is lost.
    """
    if ranks.count == 1:
        # One backward pass instead of two halves: a tenth less CPU for an update of a small network.
        return gradient_step(loss_of(outputs), optimizer, max_grad_norm=max_grad_norm)
    loss, gradient = _gradient_by_outputs(outputs, loss_of, rows_B=rows_B, num_rows=num_rows, ranks=ranks)
    optimizer.clear_gradients()
    _backpropagate(outputs, gradient[rows_B])
    ranks.add_gradients(optimizer.parameters.values())
    return _optimizer_step(loss, optimizer, max_grad_norm=max_grad_norm)


def gradient_step_in_passes(
    outputs_of: Callable[[Tensor], Tensor],
    loss_of: Callable[[Tensor], Loss],
    optimizer: AdamW,
    *,
    passes: Sequence[Tensor],
    num_rows: int,
    ranks: Ranks,
    max_grad_norm: float,
) -> dict[str, float]:
    """``shared_gradient_step`` for rows whose activations do not fit into memory together; the same gradient.

    ``outputs_of`` computes the outputs of rows. They are computed once without a graph, for the loss of all rows, and
    again with a graph, one pass at a time: a third more work. A single pass has no extra cost.

    Raises:
        RankLostError: a rank is lost.
    """
    rows_B = torch.cat(list(passes))
    if len(passes) == 1:
        return shared_gradient_step(
            outputs_of(rows_B),
            loss_of,
            optimizer,
            rows_B=rows_B,
            num_rows=num_rows,
            ranks=ranks,
            max_grad_norm=max_grad_norm,
        )
    with torch.no_grad():
        part = torch.cat([outputs_of(some_B) for some_B in passes])
    loss, gradient = _gradient_by_outputs(part, loss_of, rows_B=rows_B, num_rows=num_rows, ranks=ranks)
    optimizer.clear_gradients()
    for some_B in passes:
        _backpropagate(outputs_of(some_B), gradient[some_B])
    ranks.add_gradients(optimizer.parameters.values())
    return _optimizer_step(loss, optimizer, max_grad_norm=max_grad_norm)


def _gradient_by_outputs(
    part: Tensor, loss_of: Callable[[Tensor], Loss], *, rows_B: Tensor, num_rows: int, ranks: Ranks
) -> tuple[Loss, Tensor]:
    """The loss of all ranks' outputs and its gradient by them; ``part`` is this rank's outputs."""
    whole = ranks.gather(part, rows_B, num_rows=num_rows).requires_grad_()
    loss = loss_of(whole)
    (gradient,) = torch.autograd.grad(loss.total, [whole])
    return loss, gradient


def _backpropagate(outputs: Tensor, gradient: Tensor) -> None:
    """Back-propagate a known gradient of ``outputs`` into the gradients of the parameters."""
    if len(outputs):
        # The scalar whose gradient by the outputs is ``gradient``: a backward pass from a non-scalar imports torch's
        # symbolic shapes and sympy.
        (outputs * gradient).sum().backward()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)


def _optimizer_step(loss: Loss, optimizer: AdamW, *, max_grad_norm: float) -> dict[str, float]:
    norm = float(torch.nn.utils.clip_grad_norm_(optimizer.parameters.values(), max_grad_norm))
    # Along a gradient that is no number every parameter would become none; the metrics report it.
    if math.isfinite(norm):
        optimizer.step()
    return {"loss": float(loss.total.detach()), "grad_norm": norm, **loss.metrics}


def not_finite(metrics: Mapping[str, float]) -> list[str]:
    """The names of the metrics that are not finite: with any, the update does not count, nor do its observations."""
    return [name for name, value in metrics.items() if not math.isfinite(value)]


def mean_of(steps: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric over the gradient steps that measured it."""
    values: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}
