"""Q-learning on sampled units: double DQN with weighted errors. Targets are ``q_targets``.

Shapes: B units or steps of units, A actions. Values and targets are in the network's scale.
"""

from torch import Tensor
from torch.nn import functional

from tidegate.algorithms.loss import Loss
from tidegate.algorithms.shapes import check_floating, check_shapes


def values_of(q_BA: Tensor, actions_B: Tensor) -> Tensor:
    """Q of the actions that were taken, (...); ``q_BA``: (..., A), ``actions_B``: (...) integers."""
    return q_BA.gather(-1, actions_B.long().unsqueeze(-1)).squeeze(-1)


def double_q_values(online_q_BA: Tensor, target_q_BA: Tensor) -> Tensor:
    """The target network's value (...) of the action that the trained network prefers.

    One network alone would take the largest of its own errors for a value.

    Source: van Hasselt 2016, eq. 4.
    """
    check_shapes(tuple(online_q_BA.shape), target_q_BA=target_q_BA)
    return values_of(target_q_BA, online_q_BA.argmax(dim=-1))


def q_learning_loss(values_B: Tensor, targets_B: Tensor, weights_B: Tensor, *, huber_width: float) -> Loss:
    """The mean of the weighted Huber loss of the TD errors.

    ``values_B``: of the actions taken, with their graph; ``targets_B`` and ``weights_B``: without. ``huber_width``:
    size of an error above which the loss is linear.

    Raises:
        ValueError: the shapes differ, or a tensor holds integers.
    Source: Mnih 2015 (its clipped error); Schaul 2015, algorithm 1.
    """
    check_shapes(tuple(values_B.shape), targets_B=targets_B, weights_B=weights_B)
    check_floating(values_B=values_B, targets_B=targets_B, weights_B=weights_B)
    losses_B = functional.huber_loss(values_B, targets_B, reduction="none", delta=huber_width)
    errors_B = (targets_B - values_B).detach()
    return Loss(
        total=(weights_B * losses_B).mean(),
        metrics={
            "value_mean": float(values_B.detach().mean()),
            "td_error_mean": float(errors_B.abs().mean()),
        },
    )
