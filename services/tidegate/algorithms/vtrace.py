"""V-trace: value targets and advantages for a policy, from steps of older policies.

Shapes: T steps, N environments, S = T + 1 observations. Symbols: π the policy to be improved, μ the behaviour policy
that acted, r_t their ratio, V the value estimates, γ the discount.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate.algorithms.recurrence import backward_recurrence
from tidegate.algorithms.shapes import check_floating, check_shapes


@dataclass(frozen=True, slots=True)
class VtraceReturns:
    """V-trace's results for a segment; all (T, N), constant.

    ``value_targets_TN``: v_t, the regression target of V. ``advantages_TN``: A_t, not yet weighted. ``weights_TN``:
    ρ_t, the truncated ratio of the policy gradient ρ_t A_t ∇log π.
    """

    value_targets_TN: Tensor
    advantages_TN: Tensor
    weights_TN: Tensor


def vtrace(
    *,
    ratios_TN: Tensor,
    rewards_TN: Tensor,
    discounts_TN: Tensor,
    continues_TN: Tensor,
    values_SN: Tensor,
    clip_rho: float,
    clip_c: float,
    lambda_: float,
) -> VtraceReturns:
    """V-trace over segments that may contain several episodes.

    v_t = V_t + ρ_t (r_t + γ V_{t+1} − V_t) + γ c_t (v_{t+1} − V_{t+1}), ρ_t = min(ρ̄, π/μ), c_t = λ min(c̄, π/μ), and
    A_t = r_t + γ (λ v_{t+1} + (1 − λ) V_{t+1}) − V_t, which at π = μ is GAE and at λ = 1 the paper's.

    ``discounts_TN``: γ, and 0 where the episode terminated at t. ``continues_TN`` (bool): False where step t + 1 is not
    of the same episode, terminated or truncated; there V_{t+1} still bootstraps if the discount is not 0, without the
    correction of v_{t+1}. Outputs of rows that are no steps (after an episode's end) are to be ignored; they affect no
    other row as long as the row before them does not continue. ``values_SN``: V of the observations before each step
    and after the last.

    Raises:
        ValueError: a shape or type is wrong, or ``clip_rho`` is below ``clip_c``, for which the paper's fixed point
            does not hold.
    Source: Espeholt 2018, eq. 1 and section 4.2; λ in the advantage as in rlax's vtrace_td_error_and_advantage.
    """
    num_steps, num_envs = rewards_TN.shape
    check_shapes(
        (num_steps, num_envs), ratios_TN=ratios_TN, discounts_TN=discounts_TN, continues_TN=continues_TN
    )
    check_shapes((num_steps + 1, num_envs), values_SN=values_SN)
    check_floating(ratios_TN=ratios_TN, rewards_TN=rewards_TN, discounts_TN=discounts_TN, values_SN=values_SN)
    if clip_rho < clip_c:
        raise ValueError(f"clip_rho {clip_rho} is below clip_c {clip_c}")
    values_TN, next_values_TN = values_SN[:-1], values_SN[1:]
    weights_TN = ratios_TN.clamp_max(clip_rho)
    traces_TN = lambda_ * ratios_TN.clamp_max(clip_c)
    errors_TN = weights_TN * (rewards_TN + discounts_TN * next_values_TN - values_TN)
    corrections_TN = backward_recurrence(errors_TN, discounts_TN * traces_TN * continues_TN)
    # v_{t+1} − V_{t+1}; 0 after the segment's last step or an episode's end.
    next_corrections_TN = torch.cat((corrections_TN[1:], torch.zeros_like(corrections_TN[:1]))) * continues_TN
    bootstraps_TN = next_values_TN + lambda_ * next_corrections_TN
    return VtraceReturns(
        value_targets_TN=values_TN + corrections_TN,
        advantages_TN=rewards_TN + discounts_TN * bootstraps_TN - values_TN,
        weights_TN=weights_TN,
    )
