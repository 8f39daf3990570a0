"""Policy objectives for completions that older policies sampled: GRPO and its off-policy corrections, by name.

Shapes: B completions, T their tokens. Symbols: θ the policy being trained, prox the policy at the start of this
learner step, μ the behaviour policy that sampled each token (its logprob is in the record); ratios are
probabilities divided, token by token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from tidegate.algorithms.grpo_settings import DECOUPLED_WEIGHT_MAX, GrpoSettings, ObjectiveName
from tidegate.algorithms.importance import effective_sample_size, k3_divergence, probability_ratios
from tidegate.algorithms.loss import Loss
from tidegate.algorithms.ppo import Surrogate, clipped_surrogate
from tidegate.algorithms.schedules import warmup_then_linear
from tidegate.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GrpoInputs:
    """What the objectives read beside the logprobs under θ; all of it constant, padding masked out.

    ``proximal_logprobs_BT``: under the policy at the start of the learner step, before its first gradient step.
    ``reference_logprobs_BT``: under the reference policy; only a positive ``kl_weight`` needs it.
    """

    mask_BT: Tensor
    advantages_B: Tensor
    behavior_logprobs_BT: Tensor
    proximal_logprobs_BT: Tensor
    reference_logprobs_BT: Tensor | None = None

    def rows(self, index_B: Tensor, *, num_tokens: int) -> "GrpoInputs":
        """These completions, cut to the ``num_tokens`` that the longest of them has."""
        reference = self.reference_logprobs_BT
        return GrpoInputs(
            mask_BT=self.mask_BT[index_B, :num_tokens],
            advantages_B=self.advantages_B[index_B],
            behavior_logprobs_BT=self.behavior_logprobs_BT[index_B, :num_tokens],
            proximal_logprobs_BT=self.proximal_logprobs_BT[index_B, :num_tokens],
            reference_logprobs_BT=None if reference is None else reference[index_B, :num_tokens],
        )


Objective: TypeAlias = Callable[[Tensor, GrpoInputs, GrpoSettings], Surrogate]


def _clipped(ratios_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Surrogate:
    advantages_BT = inputs.advantages_B[:, None].expand_as(ratios_BT)
    return clipped_surrogate(
        ratios_BT, advantages_BT, clip_low=settings.clip_low, clip_high=settings.clip_high
    )


def _weighted(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings, *, cap: float) -> Surrogate:
    weights_BT = probability_ratios(inputs.proximal_logprobs_BT, inputs.behavior_logprobs_BT).clamp_max(cap)
    surrogate = _clipped(probability_ratios(logprobs_BT, inputs.proximal_logprobs_BT), inputs, settings)
    return Surrogate(values=weights_BT * surrogate.values, clipped=surrogate.clipped)


def plain_objective(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Surrogate:
    """Policy gradient as if every token came from θ: A · log π_θ (Williams 1992)."""
    del settings
    return Surrogate(
        values=logprobs_BT * inputs.advantages_B[:, None], clipped=torch.zeros_like(inputs.mask_BT)
    )


def grpo_objective(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Surrogate:
    """PPO's clip on π_θ/μ, per token (Schulman 2017, eq. 7; Shao 2024, eq. 3)."""
    return _clipped(probability_ratios(logprobs_BT, inputs.behavior_logprobs_BT), inputs, settings)


def tis_objective(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Surrogate:
    """PPO's clip on π_θ/π_prox, times min(π_prox/μ, cap), per token (truncated importance sampling, Yao 2025)."""
    return _weighted(logprobs_BT, inputs, settings, cap=settings.importance_cap)


def decoupled_ppo_objective(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Surrogate:
    """PPO's clip on π_θ/π_prox, times π_prox/μ, per token (Fu 2025, AReaL, eq. 5)."""
    return _weighted(logprobs_BT, inputs, settings, cap=DECOUPLED_WEIGHT_MAX)


def gspo_objective(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Surrogate:
    """PPO's clip on the geometric mean of π_θ/μ over a completion, one for all of its tokens (Zheng 2025, eq. 7)."""
    log_ratios_BT = (logprobs_BT - inputs.behavior_logprobs_BT) * inputs.mask_BT
    mean_B1 = log_ratios_BT.sum(dim=1, keepdim=True) / inputs.mask_BT.sum(dim=1, keepdim=True).clamp_min(1)
    ratios_B1 = probability_ratios(mean_B1, torch.zeros_like(mean_B1))
    return _clipped(ratios_B1.expand_as(logprobs_BT), inputs, settings)


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "grpo": grpo_objective,
    "tis": tis_objective,
    "decoupled_ppo": decoupled_ppo_objective,
    "gspo": gspo_objective,
    "none": plain_objective,
}


def grpo_loss(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Loss:
    """The loss of one minibatch: minus the objective's mean over tokens, plus the weighted KL to the reference.

    ``logprobs_BT``: log π_θ of the tokens, with its graph; what stands where the mask is False is ignored.
    Metrics (shares and means over tokens): ``ess`` of π_θ/μ in (0, 1], ``ratio_mean`` of it, ``mismatch_kl`` (nats, k3
    estimate of KL(μ‖π_θ)), ``clipped_fraction`` (tokens whose gradient a clip stopped), ``reference_kl``.

    Raises:
        ConfigError: ``kl_weight`` is positive and there are no reference logprobs.
    """
    # Padding is made equal everywhere, so that nothing odd in it reaches a gradient.
    logprobs_BT = torch.where(inputs.mask_BT, logprobs_BT, inputs.behavior_logprobs_BT.detach())
    surrogate = OBJECTIVES[settings.objective](logprobs_BT, inputs, settings)
    total = -_mean(surrogate.values, inputs.mask_BT, token_mean=settings.token_mean)
    metrics = _staleness_metrics(logprobs_BT.detach(), inputs)
    metrics["clipped_fraction"] = float(surrogate.clipped[inputs.mask_BT].float().mean())
    if settings.kl_weight > 0.0:
        if inputs.reference_logprobs_BT is None:
            raise ConfigError(
                f"kl_weight is {settings.kl_weight} and there is no reference policy",
                fix="set kl_weight to 0, or give the learner a reference version",
            )
        divergence_BT = k3_divergence(inputs.reference_logprobs_BT - logprobs_BT)
        kl = _mean(divergence_BT, inputs.mask_BT, token_mean=settings.token_mean)
        total = total + settings.kl_weight * kl
        metrics["reference_kl"] = float(kl.detach())
    return Loss(total=total, metrics=metrics)


def _mean(values_BT: Tensor, mask_BT: Tensor, *, token_mean: bool) -> Tensor:
    masked_BT = torch.where(mask_BT, values_BT, torch.zeros_like(values_BT))
    if token_mean:
        return masked_BT.sum() / mask_BT.sum()
    return (masked_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp_min(1)).mean()


def _staleness_metrics(logprobs_BT: Tensor, inputs: GrpoInputs) -> dict[str, float]:
    log_ratios_N = (logprobs_BT - inputs.behavior_logprobs_BT)[inputs.mask_BT]
    ratios_N = probability_ratios(log_ratios_N, torch.zeros_like(log_ratios_N))
    return {
        "ess": effective_sample_size(ratios_N),
        "ratio_mean": float(ratios_N.mean()),
        "mismatch_kl": float(k3_divergence(log_ratios_N).mean()),
    }


def learning_rate_at(settings: GrpoSettings, *, update: int) -> float:
    """The learning rate of the update that makes version ``update`` (counted from 1)."""
    return warmup_then_linear(
        settings.learning_rate,
        update=update,
        warmup_updates=settings.warmup_versions,
        anneal_updates=settings.anneal_versions,
        final_share=settings.learning_rate_final_share,
    )


def rows_with_signal(rewards_B: Tensor, group_index_B: Tensor) -> Tensor:
    """Positions of the completions in groups whose rewards differ: the others have no gradient.

    None at all when no group's do: then there is nothing to learn from, and no update to make.
    """
    flat_G = torch.zeros(int(group_index_B.max()) + 1, dtype=rewards_B.dtype, device=rewards_B.device)
    lowest_G = flat_G.scatter_reduce(0, group_index_B, rewards_B, "amin", include_self=False)
    highest_G = flat_G.scatter_reduce(0, group_index_B, rewards_B, "amax", include_self=False)
    return (highest_G > lowest_G)[group_index_B].nonzero()[:, 0]


def minibatch_rows(group_index_B: Tensor, *, minibatches: int, generator: torch.Generator) -> list[Tensor]:
    """Row positions of at most ``minibatches`` parts of about equal size, made of whole groups in random order.

    Groups are numbered from 0 without gaps.
    """
    num_groups = int(group_index_B.max()) + 1
    part_of_rank = torch.arange(num_groups) * min(minibatches, num_groups) // num_groups
    part_of_group = part_of_rank[torch.randperm(num_groups, generator=generator)].to(group_index_B.device)
    part_B = part_of_group[group_index_B]
    return [(part_B == part).nonzero()[:, 0] for part in range(min(minibatches, num_groups))]
