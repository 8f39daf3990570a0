"""Objectives for completions without a clip: a weight on the policy gradient, a mask, or a balance condition.

Shapes: B completions, T their tokens. Symbols: θ the policy being trained, μ the behaviour policy, ρ = π_θ/μ, A the
advantage, R the reward, sg stop-gradient.
"""

import torch
from torch import Tensor

from tidegate.algorithms.completion_tokens import CompletionTokens, ObjectiveValues, bounded_ratios
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.algorithms.importance import RATIO_TOLERANCE


def plain_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """Policy gradient as if every token came from θ: A log π_θ (Williams 1992)."""
    del settings
    return ObjectiveValues(
        values=tokens.logprobs_BT * tokens.advantages_BT, limited_BT=torch.zeros_like(tokens.mask_BT)
    )


def cispo_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """sg(clip(ρ, low, high)) A log π_θ, per token: no token loses its gradient (MiniMax-M1, Chen 2025, eq. 4-5).

    Bounds are absolute here, as in TRL; the paper and others clamp at 1 − ε_low and 1 + ε_high. No lower bound by
    default: neither the paper nor ScaleRL uses one.
    """
    ratios_BT = bounded_ratios(tokens.logprobs_BT.detach() - tokens.behavior_BT)
    weights_BT = ratios_BT.clamp(settings.cispo_low, settings.cispo_high)
    return ObjectiveValues(
        values=weights_BT * tokens.advantages_BT * tokens.logprobs_BT,
        limited_BT=(ratios_BT - weights_BT).abs() > RATIO_TOLERANCE * weights_BT,
    )


def topr_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """Terms w A log π_θ, w = 1 for completions above their group's average, sg(min(ρ of the whole, 1)) below it.

    So bad completions are unlearnt only while θ would still sample them; long ones that θ has left have weight 0.
    Source: Le Roux 2025 (tapered off-policy REINFORCE), its canonical bounds: [1, 1] and [0, 1].
    """
    del settings
    ratios_B1 = bounded_ratios((tokens.logprobs_BT.detach() - tokens.behavior_BT).sum(dim=1, keepdim=True))
    below_B1 = tokens.advantages_B[:, None] < 0.0
    weights_B1 = torch.where(below_B1, ratios_B1.clamp_max(1.0), torch.ones_like(ratios_B1))
    cut_B1 = below_B1 & (ratios_B1 > 1.0 + RATIO_TOLERANCE)
    return ObjectiveValues(
        values=weights_B1 * tokens.advantages_BT * tokens.logprobs_BT,
        limited_BT=cut_B1.expand_as(tokens.mask_BT),
    )


def dppo_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """A ρ − τ log²ρ, per token; A ρ is masked where π_θ − μ already exceeds δ in the direction of A.

    A change of probability, not of a ratio: rare tokens may move by large factors. Source: Qi 2026 (divergence PPO,
    its binary total variation); the squared log ratio, which holds every token, is prime-rl's, whose default this is.
    """
    log_ratios_BT = tokens.logprobs_BT - tokens.behavior_BT
    changes_BT = tokens.logprobs_BT.detach().exp() - tokens.behavior_BT.exp()
    too_far_BT = torch.where(
        tokens.advantages_BT > 0.0, changes_BT > settings.dppo_delta, changes_BT < -settings.dppo_delta
    )
    stopped_BT = too_far_BT & (tokens.advantages_BT != 0.0)
    pushed_BT = tokens.advantages_BT * bounded_ratios(log_ratios_BT)
    kept_BT = torch.where(stopped_BT, torch.zeros_like(pushed_BT), pushed_BT)
    return ObjectiveValues(values=kept_BT - settings.dppo_tau * log_ratios_BT.square(), limited_BT=stopped_BT)


def tba_objective(tokens: CompletionTokens, settings: GrpoSettings) -> ObjectiveValues:
    """−(log Ẑ + Σ log π_θ − Σ log π_ref − R/β)², one per completion: trajectory balance, for any behaviour policy.

    log Ẑ = sg(mean of R/β + Σ log π_ref − Σ log π_θ) over the prompt's completions that are in this minibatch; groups
    are whole there. At π_θ = π_ref its gradient is 2/β that of ``none`` with centred rewards, summed over tokens.

    Raises:
        ValueError: rewards, groups or the reference's logprobs are missing.
    Source: Bartoldson 2025 (TBA), section 3; log Ẑ as in VarGrad (Richter 2020).
    """
    if tokens.rewards_B is None or tokens.group_index_B is None or tokens.reference_BT is None:
        raise ValueError("Objective tba needs rewards_B, group_index_B and reference_logprobs_BT")
    distances_B = (tokens.logprobs_BT - tokens.reference_BT).sum(dim=1)
    gaps_B = tokens.rewards_B / settings.tba_beta - distances_B
    residuals_B = _mean_of_group(gaps_B.detach(), tokens.group_index_B) - gaps_B
    return ObjectiveValues(values=-residuals_B.square(), limited_BT=torch.zeros_like(tokens.mask_BT))


def _mean_of_group(values_B: Tensor, group_index_B: Tensor) -> Tensor:
    zeros_G = torch.zeros(int(group_index_B.max()) + 1, dtype=values_B.dtype, device=values_B.device)
    return zeros_G.scatter_reduce(0, group_index_B, values_B, "mean", include_self=False)[group_index_B]
