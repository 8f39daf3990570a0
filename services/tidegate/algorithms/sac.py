"""Soft actor-critic: maximise reward and entropy from replayed transitions.

Two critics learn what an action is worth; the smaller of their values counts, because the larger one overestimates.
The policy moves along the critics' gradient, through reparameterised actions; the temperature holds its entropy at a
target.

Shapes: B transitions, C critics.

Source: Haarnoja 2018a (arXiv:1801.01290) and 2018b (arXiv:1812.05905).
"""

import torch
from torch import Tensor

from tidegate.algorithms.loss import Loss
from tidegate.algorithms.shapes import check_floating, check_shapes


@torch.no_grad()
def soft_values(values_CB: Tensor, logprobs_B: Tensor, *, temperature: Tensor) -> Tensor:
    """min_c Q_c(s, a) − α log π(a|s) (B,), with actions drawn from the policy: what a state is worth.

    ``q_targets.transition_targets`` makes the critics' targets of it, with Q of the target critics.

    Raises:
        ValueError: the shapes differ.
    Source: Haarnoja 2018b, eq. 3; the smaller of two from Fujimoto 2018.
    """
    check_shapes((len(values_CB), *logprobs_B.shape), values_CB=values_CB)
    check_floating(values_CB=values_CB, logprobs_B=logprobs_B)
    return values_CB.amin(dim=0) - temperature * logprobs_B


def critic_loss(values_CB: Tensor, targets_B: Tensor, *, weights_B: Tensor | None = None) -> Loss:
    """Half the squared error of each critic, summed over critics and averaged over transitions.

    ``weights_B``: of importance, where transitions were not drawn uniformly.

    Raises:
        ValueError: the shapes differ.
    Source: Haarnoja 2018b, eq. 5.
    """
    check_shapes((len(values_CB), *targets_B.shape), values_CB=values_CB)
    squares_B = (values_CB - targets_B).square().sum(dim=0)
    if weights_B is not None:
        check_shapes(tuple(targets_B.shape), weights_B=weights_B)
        squares_B = weights_B * squares_B
    loss = 0.5 * squares_B.mean()
    return Loss(
        loss, {"critic_loss": float(loss.detach()), "action_value_mean": float(values_CB.detach().mean())}
    )


def errors(values_CB: Tensor, targets_B: Tensor) -> Tensor:
    """How far the critics are from the targets (B,), the mean of their absolute errors: a priority."""
    return (values_CB.detach() - targets_B).abs().mean(dim=0)


def soft_policy_loss(logprobs_B: Tensor, values_CB: Tensor, *, temperature: Tensor) -> Loss:
    """α log π(a|s) − min_c Q_c(s, a), averaged over states.

    Both depend on the policy: through the density of its reparameterised action, and through the action.

    Raises:
        ValueError: the shapes differ.
    Source: Haarnoja 2018b, eq. 9; the smaller of two as in section 5.
    """
    check_shapes((len(values_CB), *logprobs_B.shape), values_CB=values_CB)
    loss = (temperature.detach() * logprobs_B - values_CB.amin(dim=0)).mean()
    return Loss(loss, {"policy_loss": float(loss.detach()), "entropy": -float(logprobs_B.detach().mean())})


def temperature_loss(log_temperature: Tensor, logprobs_B: Tensor, *, target_entropy: float) -> Loss:
    """α (entropy − target), whose gradient raises α while the policy's entropy is below the target.

    Raises:
        ValueError: ``log_temperature`` is not one number.
    Source: Haarnoja 2018b, eq. 18, by the temperature's logarithm so that it stays positive.
    """
    check_shapes((), log_temperature=log_temperature)
    entropy = -logprobs_B.detach().mean()
    temperature = log_temperature.exp()
    return Loss(temperature * (entropy - target_entropy), {"temperature": float(temperature.detach())})
