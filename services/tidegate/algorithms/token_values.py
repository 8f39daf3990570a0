"""Per-token values of completions: advantages, and the value loss.

A value is that of the state before its token is chosen. Between two chosen tokens the environment may have replied: the
next state is then the one before the next chosen token, and the reply's tokens are no steps.

Shapes: B completions, T their tokens, N chosen ones.
"""

import torch
from torch import Tensor

from tidegate.algorithms.loss import Loss
from tidegate.algorithms.recurrence import backward_recurrence
from tidegate.algorithms.shapes import check_floating, check_shapes


def last_chosen(mask_BT: Tensor) -> Tensor:
    """True at the last True of each row, which is where a completion's reward is; all False in a row without one."""
    later_BT = mask_BT.flip(1).cumsum(dim=1).flip(1)
    return mask_BT & (later_BT == 1)


def token_advantages(
    *, rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, discount: float, lambda_: float
) -> Tensor:
    """GAE over the chosen tokens of each row as if adjacent; (B, T), 0 where the mask is False.

    The last chosen token is terminal: a completion is not bootstrapped.

    Raises:
        ValueError: a shape or type is wrong.
    Source: Schulman 2016, eq. 16; holes are skipped as in verl's ``compute_gae_advantage_return``.
    """
    shape = tuple(mask_BT.shape)
    check_shapes(shape, rewards_BT=rewards_BT, values_BT=values_BT)
    check_floating(rewards_BT=rewards_BT, values_BT=values_BT)
    hole_TB = (~mask_BT).T
    values_TB = values_BT.T.masked_fill(hole_TB, 0.0)
    # Where the mask is False: V of the next chosen token.
    upcoming_TB = backward_recurrence(values_TB, hole_TB.to(values_TB.dtype))
    next_values_TB = torch.cat((upcoming_TB[1:], torch.zeros_like(upcoming_TB[:1])))
    errors_TB = (rewards_BT.T + discount * next_values_TB - values_TB).masked_fill(hole_TB, 0.0)
    decays_TB = torch.full_like(errors_TB, discount * lambda_).masked_fill(hole_TB, 1.0)
    return backward_recurrence(errors_TB, decays_TB).masked_fill(hole_TB, 0.0).T


def value_loss(
    values_BT: Tensor, *, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, clip: float
) -> Loss:
    """Half the mean squared error of V over chosen tokens; a move beyond ``clip`` has no gradient.

    The larger of the errors of V and of V clamped within ``clip`` (reward) of ``old_values_BT``; 0 for no limit.
    Metrics:
    ``value_loss``, ``value_clipped_fraction`` (tokens whose gradient the limit stopped), ``explained_variance`` of the
    returns by V (1 is perfect, below 0 is worse than their mean; 0 where they do not vary).

    Raises:
        ValueError: a shape is wrong.
    Source: Schulman 2017's reference code (baselines' ppo2), with the maximum of both errors.
    """
    check_shapes(
        tuple(mask_BT.shape), values_BT=values_BT, old_values_BT=old_values_BT, returns_BT=returns_BT
    )
    values_N, old_N, returns_N = values_BT[mask_BT], old_values_BT[mask_BT], returns_BT[mask_BT]
    num_tokens = max(1, len(values_N))
    errors_N = (values_N - returns_N).square()
    stopped_N = torch.zeros_like(values_N, dtype=torch.bool)
    if clip > 0.0:
        held_errors_N = (old_N + (values_N - old_N).clamp(-clip, clip) - returns_N).square()
        stopped_N = ((values_N - old_N).abs() > clip) & (held_errors_N > errors_N)
        errors_N = torch.maximum(errors_N, held_errors_N)
    total = 0.5 * errors_N.sum() / num_tokens
    return Loss(
        total=total,
        metrics={
            "value_loss": float(total.detach()),
            "value_clipped_fraction": float(stopped_N.sum()) / num_tokens,
            "explained_variance": _explained_variance(values_N.detach(), returns_N),
        },
    )


def _explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    if not len(returns_N):
        return 0.0
    variance = (returns_N - returns_N.mean()).square().mean()
    if float(variance) <= 0.0:
        return 0.0
    errors_N = returns_N - values_N
    return float(1.0 - (errors_N - errors_N.mean()).square().mean() / variance)
