"""Advantages without a correction for stale data: relative to a group's mean, or to a value function.

Shapes: B completions; T steps, N environments, S = T + 1 observations.
"""

import torch
from torch import Tensor

from tidegate.algorithms.recurrence import backward_recurrence
from tidegate.algorithms.shapes import check_floating, check_shapes

# Added to a group's standard deviation, so that rounding differences of rewards do not become advantages of 1.
GROUP_STD_FLOOR = 1e-4


def group_advantages(rewards_B: Tensor, group_index_B: Tensor, *, normalise_by_std: bool) -> Tensor:
    """(R − mean of its group) / (std of its group + δ), or only centred (Dr. GRPO); shape (B,).

    ``group_index_B``: the group of each completion, from 0. The standard deviation is the sample's (n − 1);
    a group of one, or of equal rewards, has advantage 0.

    Raises:
        ValueError: shapes differ, or rewards are not of a floating type.
    Source: Shao 2024, section 4.1; Liu 2025 (Dr. GRPO), section 3.2, without the division.
    """
    check_shapes((rewards_B.numel(),), rewards_B=rewards_B, group_index_B=group_index_B)
    check_floating(rewards_B=rewards_B)
    if not len(rewards_B):
        return rewards_B
    num_groups = int(group_index_B.max()) + 1
    sizes_G = torch.bincount(group_index_B, minlength=num_groups).to(rewards_B.dtype)

    def sum_by_group(values_B: Tensor) -> Tensor:
        return torch.zeros_like(sizes_G).index_add(0, group_index_B, values_B)

    means_G = sum_by_group(rewards_B) / sizes_G
    centred_B = rewards_B - means_G[group_index_B]
    if not normalise_by_std:
        return centred_B
    stds_G = (sum_by_group(centred_B.square()) / (sizes_G - 1).clamp_min(1)).sqrt()
    return centred_B / (stds_G[group_index_B] + GROUP_STD_FLOOR)


def generalized_advantages(
    *, rewards_TN: Tensor, discounts_TN: Tensor, continues_TN: Tensor, values_SN: Tensor, lambda_: float
) -> Tensor:
    """GAE over segments that may contain several episodes; shape (T, N). Masks as for ``vtrace.vtrace``.

    Raises:
        ValueError: a shape or type is wrong.
    Source: Schulman 2016, eq. 16.
    """
    num_steps, num_envs = rewards_TN.shape
    check_shapes((num_steps, num_envs), discounts_TN=discounts_TN, continues_TN=continues_TN)
    check_shapes((num_steps + 1, num_envs), values_SN=values_SN)
    check_floating(rewards_TN=rewards_TN, discounts_TN=discounts_TN, values_SN=values_SN)
    errors_TN = rewards_TN + discounts_TN * values_SN[1:] - values_SN[:-1]
    return backward_recurrence(errors_TN, lambda_ * discounts_TN * continues_TN)


def normalised(advantages_B: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over a batch, independent of the reward scale.

    Raises:
        ValueError: the advantages are not one row of a floating type.
    """
    check_shapes((advantages_B.numel(),), advantages_B=advantages_B)
    check_floating(advantages_B=advantages_B)
    centred_B = advantages_B - advantages_B.mean()
    # Equal advantages carry no signal; rounding differences must not be amplified into one.
    return centred_B / (centred_B.square().mean().sqrt() + GROUP_STD_FLOOR)
