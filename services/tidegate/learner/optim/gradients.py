"""One gradient step, as every trainer makes it.

Ranks share a step so: each computes the network's outputs for its rows, all gather them, and each takes the loss over
the rows of all. The gradient of that loss by a rank's own outputs is then carried back through the network, and the
ranks' gradients are added up. So an objective may look at a whole minibatch as it likes (denominators, masks, groups,
sequence ratios) and never knows of ranks, and the sum is the gradient that one process would have found. It costs one
more exchange of the outputs, a number or a few for each step or token, which is little beside the gradients.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tidegate.algorithms.loss import Loss
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.ranks.port import Ranks


def gradient_step(loss: Loss, optimizer: AdamW, *, max_grad_norm: float) -> dict[str, float]:
    """Follow the gradient once, scaled down to ``max_grad_norm``; the loss' metrics, ``loss`` and ``grad_norm``."""
    optimizer.clear_gradients()
    loss.total.backward()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)
    return _follow(loss, optimizer, max_grad_norm=max_grad_norm)


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
    """Follow the gradient of ``loss_of`` the outputs of all ranks once, as ``gradient_step`` does.

    ``outputs``: (B, ...) of this rank's rows, with their graph; ``rows_B``: which of the minibatch's ``num_rows`` they
    are. A rank may have none.

    Raises:
        RankLostError: a rank is gone.
    """
    loss, gradient = _gradient_by_outputs(outputs, loss_of, rows_B=rows_B, num_rows=num_rows, ranks=ranks)
    optimizer.clear_gradients()
    _carry_back(outputs, gradient[rows_B])
    ranks.add_gradients(optimizer.parameters.values())
    return _follow(loss, optimizer, max_grad_norm=max_grad_norm)


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

    ``outputs_of`` gives the outputs of the rows it is asked for. They are computed once without a graph, for the loss
    of all of them, and once more with one, a pass at a time: a third more work. A single pass costs nothing more.

    Raises:
        RankLostError: a rank is gone.
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
        _carry_back(outputs_of(some_B), gradient[some_B])
    ranks.add_gradients(optimizer.parameters.values())
    return _follow(loss, optimizer, max_grad_norm=max_grad_norm)


def _gradient_by_outputs(
    part: Tensor, loss_of: Callable[[Tensor], Loss], *, rows_B: Tensor, num_rows: int, ranks: Ranks
) -> tuple[Loss, Tensor]:
    """The loss of the outputs of all ranks, of which ``part`` is this one's, and its gradient by them."""
    whole = ranks.gather(part, rows_B, num_rows=num_rows).requires_grad_()
    loss = loss_of(whole)
    (gradient,) = torch.autograd.grad(loss.total, [whole])
    return loss, gradient


def _carry_back(outputs: Tensor, gradient: Tensor) -> None:
    """Add what ``outputs``, whose gradient is known, mean for the gradients of the parameters."""
    if len(outputs):
        # The scalar whose gradient by the outputs is ``gradient``: a backward pass from anything else loads torch's
        # symbolic shapes, and with them sympy.
        (outputs * gradient).sum().backward()  # pyright: ignore[reportUnknownMemberType] (torch leaves its types open)


def _follow(loss: Loss, optimizer: AdamW, *, max_grad_norm: float) -> dict[str, float]:
    norm = torch.nn.utils.clip_grad_norm_(optimizer.parameters.values(), max_grad_norm)
    optimizer.step()
    return {"loss": float(loss.total.detach()), "grad_norm": float(norm), **loss.metrics}


def mean_of(steps: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric over gradient steps."""
    return {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]} if steps else {}
