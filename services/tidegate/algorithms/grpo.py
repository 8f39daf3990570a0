"""Policy objectives for completions of older policies: GRPO and its off-policy variants, by name.

A learner step computes ``grpo_inputs`` of its whole batch once; ``grpo_loss`` is then minimised over minibatches of
whole groups. docs/objectives.md compares the objectives.

    inputs = grpo_inputs(settings, mask_BT=..., rewards_B=..., group_index_B=..., behavior_logprobs_BT=...)
    for index_B in minibatch_rows(group_index_B, minibatches=settings.minibatches, generator=generator):
        loss = grpo_loss(logprobs_BT, inputs.rows(index_B, num_tokens=num_tokens), settings)

Shapes: B completions, T their tokens. Symbols: θ the policy being trained, prox the policy at the start of this
learner step, μ the behaviour policy that sampled each token (its logprob is in the record); ratios are
probabilities divided, token by token.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from tidegate.algorithms.clipped_objectives import (
    decoupled_ppo_objective,
    grpo_objective,
    gspo_objective,
    icepop_objective,
    opsm_objective,
    ppo_objective,
    sequence_mask_objective,
    tis_objective,
)
from tidegate.algorithms.completion_tokens import (
    CompletionTokens,
    ObjectiveValues,
    bounded_ratios,
    completion_tokens,
)
from tidegate.algorithms.grpo_inputs import GrpoInputs
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.algorithms.importance import effective_sample_size, k3_divergence
from tidegate.algorithms.loss import Loss
from tidegate.algorithms.schedules import warmup_then_linear
from tidegate.algorithms.token_values import value_loss
from tidegate.algorithms.weighted_objectives import (
    cispo_objective,
    dppo_objective,
    plain_objective,
    tba_objective,
    topr_objective,
)

Objective: TypeAlias = Callable[[CompletionTokens, GrpoSettings], ObjectiveValues]

OBJECTIVES: dict[str, Objective] = {
    "none": plain_objective,
    "grpo": grpo_objective,
    "ppo": ppo_objective,
    "tis": tis_objective,
    "decoupled_ppo": decoupled_ppo_objective,
    "icepop": icepop_objective,
    "sequence_mask": sequence_mask_objective,
    "cispo": cispo_objective,
    "gspo": gspo_objective,
    "dppo": dppo_objective,
    "topr": topr_objective,
    "opsm": opsm_objective,
    "tba": tba_objective,
}


def grpo_loss(
    logprobs_BT: Tensor,
    inputs: GrpoInputs,
    settings: GrpoSettings,
    *,
    values_BT: Tensor | None = None,
    objective: Objective | None = None,
) -> Loss:
    """The loss of one minibatch: minus the objective's mean, plus the weighted KL to the reference and the value loss.

    ``logprobs_BT``: log π_θ of the tokens, with its graph; ignored where the mask is False.
    ``values_BT``: V_θ before each token, with its graph, of a policy with a value head; given if and only if
    ``inputs.critic`` is. ``objective``: a user's own; None is the one that the settings name. Metrics (shares and means
    over chosen tokens): ``ess`` of π_θ/μ in (0, 1], ``ratio_mean`` of it, ``mismatch_kl`` (nats, k3 estimate of
    KL(μ‖π_θ)), ``clipped_fraction`` (tokens whose gradient a clip or mask stopped, or whose weight ``cispo`` or
    ``topr`` truncated), ``reference_kl`` (nats, k3) where there is a reference, and ``value_loss``'s.

    Raises:
        ConfigError: the settings need a reference or a value head, and there is none.
        ValueError: a shape is wrong, or only one of ``values_BT`` and ``inputs.critic`` is given.
    """
    tokens = completion_tokens(logprobs_BT, inputs, settings)
    outcome = (objective or OBJECTIVES[settings.objective])(tokens, settings)
    values = outcome.values
    if inputs.weights_B is not None:
        values = values * (inputs.weights_B[:, None] if values.ndim == 2 else inputs.weights_B)
    total = -(_mean(values, tokens, settings) if values.ndim == 2 else values.mean())
    metrics = _staleness_metrics(tokens)
    metrics["clipped_fraction"] = _mean_of_chosen(outcome.limited_BT, tokens)
    if tokens.reference_BT is not None:
        divergence_BT = k3_divergence(tokens.reference_BT - tokens.logprobs_BT)
        metrics["reference_kl"] = _mean_of_chosen(divergence_BT.detach(), tokens)
        if settings.kl_weight > 0.0 and settings.kl_in == "loss":
            total = total + settings.kl_weight * _mean(divergence_BT, tokens, settings)
    if (values_BT is None) is not (inputs.critic is None):
        raise ValueError("values_BT and inputs.critic belong together: give both or none")
    if values_BT is not None and inputs.critic is not None:
        value_term = value_loss(
            values_BT,
            old_values_BT=inputs.critic.values_BT,
            returns_BT=inputs.critic.returns_BT,
            mask_BT=tokens.mask_BT,
            clip=settings.value_clip,
        )
        total = total + settings.value_weight * value_term.total
        metrics |= value_term.metrics
    return Loss(total=total, metrics=metrics)


def _mean(values_BT: Tensor, tokens: CompletionTokens, settings: GrpoSettings) -> Tensor:
    """Over completions × a constant (Dr. GRPO), over tokens (DAPO), or over completions of their means (GRPO)."""
    masked_BT = torch.where(tokens.mask_BT, values_BT, torch.zeros_like(values_BT))
    if settings.length_divisor_tokens:
        return masked_BT.sum() / (len(masked_BT) * settings.length_divisor_tokens)
    if settings.averages_tokens:
        return masked_BT.sum() / tokens.mask_BT.sum().clamp_min(1)
    return tokens.mean_per_completion(masked_BT).mean()


def _mean_of_chosen(values_BT: Tensor, tokens: CompletionTokens) -> float:
    values_N = values_BT[tokens.mask_BT]
    return float(values_N.to(tokens.logprobs_BT.dtype).sum()) / max(1, len(values_N))


def _staleness_metrics(tokens: CompletionTokens) -> dict[str, float]:
    log_ratios_BT = tokens.logprobs_BT.detach() - tokens.behavior_BT
    ratios_BT = bounded_ratios(log_ratios_BT)
    return {
        "ess": effective_sample_size(ratios_BT[tokens.mask_BT]),
        "ratio_mean": _mean_of_chosen(ratios_BT, tokens),
        "mismatch_kl": _mean_of_chosen(k3_divergence(log_ratios_BT), tokens),
    }


def learning_rate_at(settings: GrpoSettings, *, update: int) -> float:
    """The learning rate of the update that produces version ``update`` (counted from 1)."""
    return warmup_then_linear(
        settings.learning_rate,
        update=update,
        warmup_updates=settings.warmup_versions,
        anneal_updates=settings.anneal_versions,
        final_share=settings.learning_rate_final_share,
    )


def rows_with_signal(rewards_B: Tensor, group_index_B: Tensor) -> Tensor:
    """Positions of the completions in groups whose rewards differ: the others have no gradient.

    Empty when no group's differ: then the update has no gradient step.
    """
    flat_G = torch.zeros(int(group_index_B.max()) + 1, dtype=rewards_B.dtype, device=rewards_B.device)
    lowest_G = flat_G.scatter_reduce(0, group_index_B, rewards_B, "amin", include_self=False)
    highest_G = flat_G.scatter_reduce(0, group_index_B, rewards_B, "amax", include_self=False)
    return (highest_G > lowest_G)[group_index_B].nonzero()[:, 0]


def minibatch_rows(group_index_B: Tensor, *, minibatches: int, generator: torch.Generator) -> list[Tensor]:
    """Row positions of at most ``minibatches`` parts of about equal size, of whole groups in random order.

    Groups are numbered from 0 without gaps.
    """
    num_groups = int(group_index_B.max()) + 1
    part_of_rank = torch.arange(num_groups) * min(minibatches, num_groups) // num_groups
    part_of_group = part_of_rank[torch.randperm(num_groups, generator=generator)].to(group_index_B.device)
    part_B = part_of_group[group_index_B]
    return [(part_B == part).nonzero()[:, 0] for part in range(min(minibatches, num_groups))]
