"""Objectives for completions with PPO's clip, around the behaviour policy or around π_prox with a correction.

Shapes: B completions, T their tokens. Symbols: θ the policy being trained, π_prox the policy at the start of this
learner step, μ the behaviour policy; w = π_prox/μ, constant.
"""

import torch
from torch import Tensor

from tidegate.algorithms.completion_tokens import CompletionTokens, ObjectiveValues, bounded_ratios
from tidegate.algorithms.grpo_settings import DECOUPLED_WEIGHT_MAX, GrpoSettings
from tidegate.algorithms.ppo import clipped_surrogate


def grpo_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """PPO's clip on π_θ/μ, per token (Schulman 2017, eq. 7; Shao 2024, eq. 3)."""
    return _clipped(bounded_ratios(tokens.logprobs_BT - tokens.behavior_BT), tokens, settings)


def ppo_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """``grpo`` with the advantages of a value head, per token (Schulman 2017, eq. 7 and 11).

    Peers clip around π_prox (verl, SkyRL) or μ; here μ, which is the original PPO also with stale data.
    """
    return grpo_objective(tokens, settings)


def tis_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """PPO's clip on π_θ/π_prox, times min(w, cap), per token (truncated importance sampling, Yao 2025)."""
    return _scaled(_around_proximal(tokens, settings), _weights(tokens).clamp_max(settings.importance_cap))


def decoupled_ppo_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """PPO's clip on π_θ/π_prox, times w, per token (Hilton 2021, eq. 3; Fu 2025, AReaL, eq. 5)."""
    return _scaled(_around_proximal(tokens, settings), _weights(tokens).clamp_max(DECOUPLED_WEIGHT_MAX))


def icepop_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """PPO's clip on π_θ/π_prox, times w where it lies in [low, high] and 0 elsewhere (IcePop, Ling team 2025).

    Bounds differ: 0.5-5 in NeMo-RL, 0.5-2 in SkyRL. Masked tokens still count in the mean's denominator;
    slime excludes them.
    """
    weights_BT = _weights(tokens)
    kept_BT = (weights_BT >= settings.icepop_low) & (weights_BT <= settings.icepop_high)
    return _masked(_scaled(_around_proximal(tokens, settings), weights_BT), kept_BT)


def sequence_mask_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """PPO's clip on π_θ/π_prox of completions whose geometric mean of w lies in [low, high]; the others are masked.

    Source: Liu 2025, "When speed kills stability" (geometric sequence masking); SkyRL's bounds. Kept tokens are not
    weighted; verl can do both.
    """
    means_B1 = bounded_ratios(tokens.mean_per_completion(tokens.proximal_BT - tokens.behavior_BT))
    kept_B1 = (means_B1 >= settings.sequence_low) & (means_B1 <= settings.sequence_high)
    return _masked(_around_proximal(tokens, settings), kept_B1.expand_as(tokens.mask_BT))


def opsm_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """``grpo`` without below-average completions that θ has moved away from (off-policy sequence masking).

    Masked when the mean of log μ − log π_θ over its tokens passes ``opsm_kl_max``.
    Source: DeepSeek-V3.2 (2025), section 3.1; slime's ``opsm_delta`` is the same bound.
    """
    drift_B1 = tokens.mean_per_completion(tokens.behavior_BT - tokens.logprobs_BT.detach())
    kept_B1 = (drift_B1 <= settings.opsm_kl_max) | (tokens.advantages_B[:, None] >= 0.0)
    return _masked(grpo_objective(tokens, settings), kept_B1.expand_as(tokens.mask_BT))


def gspo_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """PPO's clip on the geometric mean of π_θ/μ over a completion, for all of its tokens (Zheng 2025, eq. 5 and 7).

    The gradient is by each token's own log π_θ (GSPO-token, eq. 13-14), which is equal for per-completion advantages.
    The paper averages over completions, and so does ``token_mean`` by default.
    """
    means_B1 = bounded_ratios(tokens.mean_per_completion(tokens.logprobs_BT - tokens.behavior_BT)).detach()
    return _clipped(means_B1 * (tokens.logprobs_BT - tokens.logprobs_BT.detach()).exp(), tokens, settings)


def _clipped(ratios_BT: Tensor, tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    surrogate = clipped_surrogate(
        ratios_BT, tokens.advantages_BT, clip_low=settings.clip_low, clip_high=settings.clip_high
    )
    return ObjectiveValues(values=surrogate.values, limited_BT=surrogate.clipped)


def _around_proximal(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    return _clipped(bounded_ratios(tokens.logprobs_BT - tokens.proximal_BT), tokens, settings)


def _weights(tokens: CompletionTokens) -> Tensor:
    return bounded_ratios(tokens.proximal_BT - tokens.behavior_BT)


def _scaled(outcome: ObjectiveValues, weights_BT: Tensor) -> ObjectiveValues:
    return ObjectiveValues(values=weights_BT * outcome.values, limited_BT=outcome.limited_BT)


def _masked(outcome: ObjectiveValues, kept_BT: Tensor) -> ObjectiveValues:
    return ObjectiveValues(
        values=torch.where(kept_BT, outcome.values, torch.zeros_like(outcome.values)),
        limited_BT=outcome.limited_BT | ~kept_BT,
    )
