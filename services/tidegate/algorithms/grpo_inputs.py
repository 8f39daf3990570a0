"""The inputs of the objectives for completions, computed once per step, before any gradient.

Shapes: B completions, T their tokens. A completion of several turns contains replies of the environment between the
tokens that the policy chose: the mask is False there, and they are ignored everywhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate.algorithms.advantages import group_advantages, normalised
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.algorithms.shapes import check_floating, check_shapes
from tidegate.algorithms.token_values import last_chosen, token_advantages
from tidegate.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CriticTargets:
    """Targets of a value head; all (B, T) and constant, in units of reward.

    ``values_BT``: V before each token, under the policy at the start of the step. ``advantages_BT``: of each token.
    ``returns_BT``: the regression targets of V.
    """

    values_BT: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor

    def rows(self, index_B: Tensor, *, num_tokens: int) -> "CriticTargets":
        """The targets of some completions, cut to ``num_tokens``."""
        return CriticTargets(
            values_BT=self.values_BT[index_B, :num_tokens],
            advantages_BT=self.advantages_BT[index_B, :num_tokens],
            returns_BT=self.returns_BT[index_B, :num_tokens],
        )


@dataclass(frozen=True, slots=True)
class GrpoInputs:
    """The objectives' inputs beside the logprobs under θ; constant, with arbitrary values where the mask is False.

    ``mask_BT``: True on the tokens that the policy chose. ``advantages_B``: of whole completions, relative to their
    group.
    ``behavior_logprobs_BT``: as recorded when the tokens were sampled.
    ``proximal_logprobs_BT``: under the policy at the start of the learner step, before its first gradient step; None
    unless ``GrpoSettings.reads_proximal``.
    ``reference_logprobs_BT``: under the reference policy; only ``GrpoSettings.reads_reference`` needs it.
    ``critic``: of a policy with a value head; its advantages then replace the group's, per token.
    ``rewards_B``, ``group_index_B`` (from 0, the same for a prompt's samples): only ``tba`` uses them.
    ``version_gap_BT``: versions that the policy at the start of the step is ahead of the one that sampled the token, 0
    or more; only ``GrpoSettings.reads_version_gap`` needs it.
    ``weights_B``: weight of each completion, 1 on average (recency); None for equal weights.
    """

    mask_BT: Tensor
    advantages_B: Tensor
    behavior_logprobs_BT: Tensor
    proximal_logprobs_BT: Tensor | None = None
    reference_logprobs_BT: Tensor | None = None
    critic: CriticTargets | None = None
    rewards_B: Tensor | None = None
    group_index_B: Tensor | None = None
    version_gap_BT: Tensor | None = None
    weights_B: Tensor | None = None

    def rows(self, index_B: Tensor, *, num_tokens: int) -> "GrpoInputs":
        """The inputs of some completions, cut to ``num_tokens``, the length of the longest."""

        def tokens(tensor_BT: Tensor | None) -> Tensor | None:
            return None if tensor_BT is None else tensor_BT[index_B, :num_tokens]

        def whole(tensor_B: Tensor | None) -> Tensor | None:
            return None if tensor_B is None else tensor_B[index_B]

        return GrpoInputs(
            mask_BT=self.mask_BT[index_B, :num_tokens],
            advantages_B=self.advantages_B[index_B],
            behavior_logprobs_BT=self.behavior_logprobs_BT[index_B, :num_tokens],
            proximal_logprobs_BT=tokens(self.proximal_logprobs_BT),
            reference_logprobs_BT=tokens(self.reference_logprobs_BT),
            critic=None if self.critic is None else self.critic.rows(index_B, num_tokens=num_tokens),
            rewards_B=whole(self.rewards_B),
            group_index_B=whole(self.group_index_B),
            version_gap_BT=tokens(self.version_gap_BT),
            weights_B=whole(self.weights_B),
        )


def grpo_inputs(
    settings: GrpoSettings,
    *,
    mask_BT: Tensor,
    rewards_B: Tensor,
    group_index_B: Tensor,
    behavior_logprobs_BT: Tensor,
    proximal_logprobs_BT: Tensor | None = None,
    reference_logprobs_BT: Tensor | None = None,
    values_BT: Tensor | None = None,
    version_gap_BT: Tensor | None = None,
    weights_B: Tensor | None = None,
) -> GrpoInputs:
    """Compute the inputs, with advantages and value targets, of a batch of whole groups.

    ``values_BT``: of a policy with a value head, V before each token is chosen, under the policy at the start of the
    step. The reward is at the last token that the policy chose. With ``kl_in: reward`` each token costs ``kl_weight``
    × (log π_prox − log π_ref), with μ instead of π_prox where that is not computed (k1; Ouyang 2022, eq. 2).

    Raises:
        ConfigError: the settings need a reference or a value head, and there is none.
        ValueError: a shape or type is wrong.
    """
    num_rows = len(rewards_B)
    check_shapes((num_rows,), rewards_B=rewards_B, group_index_B=group_index_B)
    check_shapes(tuple(mask_BT.shape), behavior_logprobs_BT=behavior_logprobs_BT)
    check_floating(rewards_B=rewards_B, behavior_logprobs_BT=behavior_logprobs_BT)
    if settings.reads_reference and reference_logprobs_BT is None:
        raise no_reference(settings)
    if settings.reads_values and values_BT is None:
        raise no_values(settings)
    penalties_BT = torch.zeros_like(behavior_logprobs_BT)
    if settings.kl_weight > 0.0 and settings.kl_in == "reward" and reference_logprobs_BT is not None:
        current_BT = behavior_logprobs_BT if proximal_logprobs_BT is None else proximal_logprobs_BT
        penalties_BT = settings.kl_weight * (current_BT - reference_logprobs_BT).masked_fill(~mask_BT, 0.0)
    return GrpoInputs(
        mask_BT=mask_BT,
        advantages_B=group_advantages(
            rewards_B - penalties_BT.sum(dim=1), group_index_B, normalise_by_std=settings.normalise_by_std
        ),
        behavior_logprobs_BT=behavior_logprobs_BT,
        proximal_logprobs_BT=proximal_logprobs_BT,
        reference_logprobs_BT=reference_logprobs_BT,
        critic=None
        if values_BT is None
        else _critic_targets(
            settings,
            rewards_BT=rewards_B[:, None] * last_chosen(mask_BT) - penalties_BT,
            values_BT=values_BT,
            mask_BT=mask_BT,
        ),
        rewards_B=rewards_B,
        group_index_B=group_index_B,
        version_gap_BT=version_gap_BT,
        weights_B=weights_B,
    )


def _critic_targets(
    settings: GrpoSettings, *, rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor
) -> CriticTargets:
    advantages_BT = token_advantages(
        rewards_BT=rewards_BT,
        values_BT=values_BT,
        mask_BT=mask_BT,
        discount=settings.discount,
        lambda_=settings.gae_lambda,
    )
    values_BT = values_BT.masked_fill(~mask_BT, 0.0)
    scaled_BT = advantages_BT
    if settings.normalise_by_std:
        scaled_BT = torch.zeros_like(advantages_BT).masked_scatter(
            mask_BT, normalised(advantages_BT[mask_BT])
        )
    return CriticTargets(values_BT=values_BT, advantages_BT=scaled_BT, returns_BT=advantages_BT + values_BT)


def no_reference(settings: GrpoSettings) -> ConfigError:
    """The error for missing logprobs of the reference."""
    wanted = "objective is tba" if settings.objective == "tba" else f"kl_weight is {settings.kl_weight}"
    return ConfigError(
        f"{wanted} and there is no reference policy",
        fix="set kl_weight to 0 and use an objective other than tba, or give the learner a reference version",
    )


def no_values(settings: GrpoSettings) -> ConfigError:
    """The error for missing values."""
    return ConfigError(
        f"objective is {settings.objective} and the policy has no value head",
        fix="set policy.value_head to true, or use an objective with group advantages (grpo, tis)",
    )
