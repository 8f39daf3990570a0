"""``objectives.actor_critic_loss`` with its gradient written out, under numpy: for small networks on the CPU.

The same loss and metrics as the torch version, whose graph costs several times as much for some hundred steps.

Shapes: B steps.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.importance import LOG_RATIO_MAX, k3_divergence
from tidegate.algorithms.objectives import Steps

Rows: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LossGradient:
    """``total`` to minimise, its metrics, and its gradients by each step's logprob, entropy and value; (B,) each."""

    total: float
    metrics: dict[str, float]
    by_logprobs_B: Rows
    by_entropy_B: Rows
    by_values_B: Rows


def actor_critic_gradient(
    logprobs_B: Rows, entropy_B: Rows, values_B: Rows, steps: Steps, settings: ActorCriticSettings
) -> LossGradient:
    """See ``actor_critic_loss``; ``steps`` are on the CPU. What is not finite stays so, in the total as well."""
    num_steps = len(values_B)
    advantages_B, weights_B = steps.advantages_B.numpy(), steps.weights_B.numpy()
    errors_B = values_B - steps.value_targets_B.numpy()
    # Huber's loss has the clipped error as its slope.
    slopes_B = np.clip(errors_B, -1.0, 1.0)
    value_loss = float((slopes_B * (errors_B - 0.5 * slopes_B)).mean())
    entropy = float(entropy_B.mean())
    log_ratios_B = logprobs_B - steps.anchor_logprobs_B.numpy()
    if settings.objective == "a2c":
        gains_B, by_logprobs_B = logprobs_B * advantages_B, weights_B * advantages_B
        clipped_fraction = 0.0
    else:
        bounded_B = np.clip(log_ratios_B, -LOG_RATIO_MAX, LOG_RATIO_MAX)
        ratios_B = np.exp(bounded_B)
        lowest, highest = 1.0 - settings.clip, 1.0 + settings.clip
        moved_B = ratios_B * advantages_B
        gains_B = np.minimum(moved_B, np.clip(ratios_B, lowest, highest) * advantages_B)
        clipped_B = ((ratios_B > highest) & (advantages_B > 0)) | ((ratios_B < lowest) & (advantages_B < 0))
        by_logprobs_B = np.where(clipped_B | (bounded_B != log_ratios_B), np.float32(0), weights_B * moved_B)
        clipped_fraction = float(clipped_B.mean())
    policy_loss = -float((weights_B * gains_B).mean())
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "clipped_fraction": clipped_fraction,
    }
    if settings.target_kl:
        metrics["kl"] = float(k3_divergence(torch.as_tensor(log_ratios_B)).mean())
    return LossGradient(
        total=policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy,
        metrics=metrics,
        by_logprobs_B=by_logprobs_B * np.float32(-1.0 / num_steps),
        by_entropy_B=np.full(num_steps, -settings.entropy_weight / num_steps, np.float32),
        by_values_B=slopes_B * np.float32(settings.value_weight / num_steps),
    )
