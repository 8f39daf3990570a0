"""One minibatch of completions for the objectives: every policy's logprobs, 0 where the policy did not choose.

Shapes: B completions, T their tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate.algorithms.grpo_inputs import GrpoInputs, no_reference, no_values
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.algorithms.importance import LOG_RATIO_MAX
from tidegate.algorithms.shapes import check_shapes


@dataclass(frozen=True, slots=True)
class CompletionTokens:
    """Logprobs of the chosen tokens and 0 elsewhere, so that sums over a row are sums over its chosen tokens.

    ``logprobs_BT``: under θ, the only one with a graph. ``lengths_B``: number of chosen tokens, at least 1.
    ``advantages_BT``: of a value head, or the completion's advantage at each token. ``advantages_B``: the completion's.
    """

    mask_BT: Tensor
    lengths_B: Tensor
    logprobs_BT: Tensor
    behavior_BT: Tensor
    proximal_BT: Tensor
    reference_BT: Tensor | None
    advantages_BT: Tensor
    advantages_B: Tensor
    rewards_B: Tensor | None
    group_index_B: Tensor | None

    def mean_per_completion(self, values_BT: Tensor) -> Tensor:
        """The mean (B, 1) over a completion's chosen tokens of values that are 0 elsewhere."""
        return values_BT.sum(dim=1, keepdim=True) / self.lengths_B[:, None]


@dataclass(frozen=True, slots=True)
class ObjectiveValues:
    """An objective's values of a minibatch.

    ``values``: to maximise; (B, T) are averaged over tokens by the settings, (B,) over completions. ``limited_BT``
    (bool): tokens whose gradient a clip or mask stopped, or whose weight a cap truncated.
    """

    values: Tensor
    limited_BT: Tensor


def bounded_ratios(log_ratios: Tensor) -> Tensor:
    """Ratios of log ratios, bounded as ``importance.probability_ratios`` is."""
    return log_ratios.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()


def completion_tokens(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> CompletionTokens:
    """Collect the policies' logprobs; entries where the mask is False affect neither value nor gradient.

    Raises:
        ConfigError: the settings need a reference or a value head, and there is none.
        ValueError: a shape is wrong, or π_prox or the version gaps are missing where the settings need them.
    """
    mask_BT = inputs.mask_BT
    check_shapes(tuple(mask_BT.shape), logprobs_BT=logprobs_BT, behavior=inputs.behavior_logprobs_BT)
    check_shapes((len(mask_BT),), advantages_B=inputs.advantages_B)
    if settings.reads_reference and inputs.reference_logprobs_BT is None:
        raise no_reference(settings)
    if settings.reads_values and inputs.critic is None:
        raise no_values(settings)

    def chosen(tensor_BT: Tensor) -> Tensor:
        check_shapes(tuple(mask_BT.shape), tensor_BT=tensor_BT)
        return torch.where(mask_BT, tensor_BT, torch.zeros_like(tensor_BT))

    logprobs_BT, behavior_BT = chosen(logprobs_BT), chosen(inputs.behavior_logprobs_BT)
    reference_BT = inputs.reference_logprobs_BT
    return CompletionTokens(
        mask_BT=mask_BT,
        lengths_B=mask_BT.sum(dim=1).clamp_min(1),
        logprobs_BT=logprobs_BT,
        behavior_BT=behavior_BT,
        proximal_BT=chosen(_proximal(logprobs_BT.detach(), behavior_BT, inputs, settings)),
        reference_BT=None if reference_BT is None else chosen(reference_BT),
        advantages_BT=chosen(
            inputs.advantages_B[:, None].expand_as(logprobs_BT)
            if inputs.critic is None
            else inputs.critic.advantages_BT
        ),
        advantages_B=inputs.advantages_B,
        rewards_B=inputs.rewards_B,
        group_index_B=inputs.group_index_B,
    )


def _proximal(logprobs_BT: Tensor, behavior_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Tensor:
    """Logprobs under π_prox; under μ where the objective does not use π_prox.

    Interpolated: log μ + a (log π_θ − log μ), a = (v_prox − v_μ)/(v_θ − v_μ). θ is becoming the version after
    v_prox, so a is gap / (gap + 1): a token of the newest version has μ itself, one far behind has nearly θ.
    Source: Li 2025 (A-3PO), section 3, which writes 1 − a as 1/d, d = v_θ − v_μ.
    """
    if settings.reads_version_gap:
        if inputs.version_gap_BT is None:
            raise ValueError("An interpolated proximal policy needs version_gap_BT")
        gaps_BT = inputs.version_gap_BT.to(logprobs_BT.dtype).clamp_min(0.0)
        return behavior_BT + gaps_BT / (gaps_BT + 1.0) * (logprobs_BT - behavior_BT)
    if not settings.reads_proximal:
        return behavior_BT
    if inputs.proximal_logprobs_BT is None:
        raise ValueError(f"Objective {settings.objective} needs proximal_logprobs_BT")
    return inputs.proximal_logprobs_BT
