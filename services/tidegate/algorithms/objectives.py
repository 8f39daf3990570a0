"""Actor-critic objectives for segments of older policies, by name.

A learner step has two parts. ``prepare_update`` evaluates the whole batch once under the current policy (π_prox) and
computes each step's advantage, value target and weight by the named objective. ``actor_critic_loss`` is then minimised
over minibatches for some epochs, around π_prox. ``segments`` defines the layout of a segment.

    batch = stack_segments([trajectory.tensors for trajectory in trajectories], device=device)
    with torch.no_grad():
        outputs_SNP, values_SN = policy.outputs_and_values(params, batch.observations, torch)
        logprobs_TN = policy.actions.logprobs(outputs_SNP[:-1], batch.actions_TN, torch)
    prepared = prepare_update(batch, logprobs_TN=logprobs_TN, values_SN=values_SN, settings=settings)
    for _ in range(settings.epochs):
        for index_B in minibatch_indices(len(prepared.steps), settings, generator=generator):
            steps = prepared.steps.rows(index_B)
            outputs_BP, values_B = policy.outputs_and_values(params, steps.observations, torch)
            logprobs_B, entropy_B = policy.actions.logprobs_and_entropy(outputs_BP, steps.actions_B, torch)
            loss = actor_critic_loss(logprobs_B, entropy_B, values_B, steps, settings)
            # zero_grad, loss.total.backward(), clip to settings.max_grad_norm, step

``values`` are the value network's output, in units of ``settings.value_scale``.

Shapes: T steps, N environments, S = T + 1 observations, P outputs of the policy, B steps without their order (valid
ones only).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from tidegate.algorithms.actor_critic_settings import ActorCriticSettings, ObjectiveName
from tidegate.algorithms.advantages import generalized_advantages, normalised
from tidegate.algorithms.importance import (
    effective_sample_size,
    k3_divergence,
    mismatch_by_lag,
    probability_ratios,
    truncated_fraction,
)
from tidegate.algorithms.loss import Loss
from tidegate.algorithms.ppo import clipped_surrogate
from tidegate.algorithms.schedules import linear, warmup_then_linear
from tidegate.algorithms.segment_batch import UNKNOWN_VERSION, SegmentBatch
from tidegate.algorithms.shapes import check_shapes
from tidegate.algorithms.vtrace import vtrace


@dataclass(frozen=True, slots=True)
class StepTargets:
    """An objective's targets of each step; all (T, N), constant.

    ``value_targets_TN``: the regression targets of the value. ``weights_TN``: factor of the policy gradient.
    ``anchor_logprobs_TN``: of the actions, under the policy that the clip is around.
    """

    advantages_TN: Tensor
    value_targets_TN: Tensor
    weights_TN: Tensor
    anchor_logprobs_TN: Tensor


@dataclass(frozen=True, slots=True)
class Steps:
    """Valid steps without their order, ready for the loss; all constant.

    ``observations``: (B, ...) by the names of the recorded tensors; ``actions_B``: (B, ...).
    """

    observations: dict[str, Tensor]
    actions_B: Tensor
    advantages_B: Tensor
    value_targets_B: Tensor
    weights_B: Tensor
    anchor_logprobs_B: Tensor

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.actions_B)

    def rows(self, index_B: Tensor) -> "Steps":
        """Some of the steps."""
        return Steps(
            observations={name: tensor[index_B] for name, tensor in self.observations.items()},
            actions_B=self.actions_B[index_B],
            advantages_B=self.advantages_B[index_B],
            value_targets_B=self.value_targets_B[index_B],
            weights_B=self.weights_B[index_B],
            anchor_logprobs_B=self.anchor_logprobs_B[index_B],
        )


@dataclass(frozen=True, slots=True)
class PreparedUpdate:
    """One learner step's data, and its metrics before the first gradient."""

    steps: Steps
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Unroll:
    """A batch for the objectives: values in units of reward, episodes' ends as discounts and traces."""

    proximal_logprobs_TN: Tensor
    behavior_logprobs_TN: Tensor
    rewards_TN: Tensor
    discounts_TN: Tensor
    continues_TN: Tensor
    values_SN: Tensor


Objective: TypeAlias = Callable[[Unroll, ActorCriticSettings], StepTargets]


def vtrace_targets(unroll: Unroll, settings: ActorCriticSettings) -> StepTargets:
    """V-trace under π_prox, clipped around π_prox (Espeholt 2018, section 4.2)."""
    ratios_TN = probability_ratios(unroll.proximal_logprobs_TN, unroll.behavior_logprobs_TN)
    return _corrected(unroll, ratios_TN, settings)


def uncorrected_targets(unroll: Unroll, settings: ActorCriticSettings) -> StepTargets:
    """V-trace with every ratio set to 1: correct only while π_prox is the behaviour policy."""
    return _corrected(unroll, torch.ones_like(unroll.behavior_logprobs_TN), settings)


def gae_targets(unroll: Unroll, settings: ActorCriticSettings) -> StepTargets:
    """GAE, clipped around the behaviour policy (Schulman 2017, eq. 7): stale steps beyond it have no gradient.

    A2C has the same targets without the clip: at its only gradient step every ratio is 1 on fresh data.
    """
    advantages_TN = generalized_advantages(
        rewards_TN=unroll.rewards_TN,
        discounts_TN=unroll.discounts_TN,
        continues_TN=unroll.continues_TN,
        values_SN=unroll.values_SN,
        lambda_=settings.lambda_,
    )
    return StepTargets(
        advantages_TN=advantages_TN,
        value_targets_TN=unroll.values_SN[:-1] + advantages_TN,
        weights_TN=torch.ones_like(advantages_TN),
        anchor_logprobs_TN=unroll.behavior_logprobs_TN,
    )


def _corrected(unroll: Unroll, ratios_TN: Tensor, settings: ActorCriticSettings) -> StepTargets:
    returns = vtrace(
        ratios_TN=ratios_TN,
        rewards_TN=unroll.rewards_TN,
        discounts_TN=unroll.discounts_TN,
        continues_TN=unroll.continues_TN,
        values_SN=unroll.values_SN,
        clip_rho=settings.clip_rho,
        clip_c=settings.clip_c,
        lambda_=settings.lambda_,
    )
    return StepTargets(
        advantages_TN=returns.advantages_TN,
        value_targets_TN=returns.value_targets_TN,
        weights_TN=returns.weights_TN,
        anchor_logprobs_TN=unroll.proximal_logprobs_TN,
    )


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "vtrace": vtrace_targets,
    "ppo": gae_targets,
    "a2c": gae_targets,
    "none": uncorrected_targets,
}


@torch.no_grad()
def prepare_update(
    batch: SegmentBatch,
    *,
    logprobs_TN: Tensor,
    values_SN: Tensor,
    settings: ActorCriticSettings,
    segment_weights: Sequence[float] = (),
    version_step: int | None = None,
) -> PreparedUpdate:
    """Advantages, value targets and weights of every valid step, under the policy at the start of the step.

    ``logprobs_TN``, ``values_SN``: of that policy (π_prox). ``segment_weights``: weight of each segment in the policy
    gradient; empty for equal weights. ``version_step``: that policy's, where it is a published version: the mismatch
    is then also measured by lag.

    Metrics, of π_prox/μ over valid steps: ``ess`` in (0, 1], ``ratio_mean``, ``truncated_fraction`` (share above
    ``clip_rho``; about half for any stale data), ``mismatch_kl`` (nats, k3 estimate of KL(μ‖π_prox)),
    ``mismatch_by_lag``'s; and ``value_mean`` in units of reward.

    Raises:
        ValueError: a shape is wrong.
    """
    num_steps, num_envs = batch.rewards_TN.shape
    check_shapes((num_steps, num_envs), logprobs_TN=logprobs_TN)
    check_shapes((num_steps + 1, num_envs), values_SN=values_SN)
    valid_TN = batch.valid_TN
    ended_TN = batch.terminated_TN | batch.truncated_TN
    unroll = Unroll(
        proximal_logprobs_TN=logprobs_TN,
        behavior_logprobs_TN=batch.behavior_logprobs_TN,
        rewards_TN=batch.rewards_TN,
        discounts_TN=settings.discount * (~batch.terminated_TN).to(batch.rewards_TN.dtype),
        continues_TN=~ended_TN & valid_TN,
        values_SN=settings.value_scale * values_SN,
    )
    targets = OBJECTIVES[settings.objective](unroll, settings)
    weights_TN = targets.weights_TN
    if segment_weights:
        weights_N = weights_TN.new_tensor(segment_weights)[batch.segment_of_N]
        weights_TN = weights_TN * weights_N
    advantages_B = targets.advantages_TN[valid_TN]
    steps = Steps(
        observations={name: tensor[:-1][valid_TN] for name, tensor in batch.observations.items()},
        actions_B=batch.actions_TN[valid_TN],
        advantages_B=normalised(advantages_B) if settings.normalise_advantages else advantages_B,
        value_targets_B=targets.value_targets_TN[valid_TN] / settings.value_scale,
        weights_B=weights_TN[valid_TN],
        anchor_logprobs_B=targets.anchor_logprobs_TN[valid_TN],
    )
    metrics = _staleness_metrics(unroll, valid_TN, settings)
    if version_step is not None:
        known_TN = valid_TN & (batch.version_steps_TN != UNKNOWN_VERSION)
        log_ratios_N = (unroll.proximal_logprobs_TN - unroll.behavior_logprobs_TN)[known_TN]
        gaps_N = (version_step - batch.version_steps_TN[known_TN]).clamp_min(0)
        metrics |= mismatch_by_lag(log_ratios_N, gaps_N)
    return PreparedUpdate(steps=steps, metrics=metrics)


def _staleness_metrics(unroll: Unroll, valid_TN: Tensor, settings: ActorCriticSettings) -> dict[str, float]:
    log_ratios_B = (unroll.proximal_logprobs_TN - unroll.behavior_logprobs_TN)[valid_TN]
    ratios_B = probability_ratios(log_ratios_B, torch.zeros_like(log_ratios_B))
    return {
        "ess": effective_sample_size(ratios_B),
        "ratio_mean": float(ratios_B.mean()),
        "truncated_fraction": truncated_fraction(ratios_B, limit=settings.clip_rho),
        "mismatch_kl": float(k3_divergence(log_ratios_B).mean()),
        "value_mean": float(unroll.values_SN[:-1][valid_TN].mean()),
    }


def minibatch_indices(
    num_steps: int, settings: ActorCriticSettings, *, generator: torch.Generator
) -> Iterator[Tensor]:
    """Positions of the steps of each gradient step of one epoch, which has all of them in a random order."""
    shuffled = torch.randperm(num_steps, generator=generator)
    yield from (part for part in shuffled.tensor_split(settings.minibatches) if len(part))


def actor_critic_loss(
    logprobs_B: Tensor, entropy_B: Tensor, values_B: Tensor, steps: Steps, settings: ActorCriticSettings
) -> Loss:
    """The loss: −ρ · clipped surrogate + value_weight · Huber − entropy_weight · entropy, means over steps.

    The objective ``a2c`` has log π · A instead of the clipped surrogate.

    ``logprobs_B`` (of the taken actions), ``entropy_B``, ``values_B``: of the policy being trained, with their graph.
    Metrics: ``policy_loss``, ``value_loss``, ``entropy`` (nats), ``clipped_fraction`` (steps whose gradient the
    clip stopped), and with a ``target_kl`` ``kl`` (nats, k3 estimate of the divergence of π from the policy that it is
    clipped around).

    Raises:
        ValueError: a shape is wrong.
    Source: Espeholt 2018, section 4.2; the clip as in decoupled PPO (Hilton 2022, eq. 2), with π_prox the policy at
        the start of the learner step.
    """
    check_shapes((len(steps),), values_B=values_B, logprobs_B=logprobs_B, entropy_B=entropy_B)
    gains_B, clipped_fraction = _policy_gains(logprobs_B, steps, settings)
    policy_loss = -(steps.weights_B * gains_B).mean()
    value_loss = F.smooth_l1_loss(values_B, steps.value_targets_B)
    entropy = entropy_B.mean()
    total = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
    metrics = {
        "policy_loss": float(policy_loss.detach()),
        "value_loss": float(value_loss.detach()),
        "entropy": float(entropy.detach()),
        "clipped_fraction": clipped_fraction,
    }
    if settings.target_kl:
        metrics["kl"] = float(k3_divergence(logprobs_B.detach() - steps.anchor_logprobs_B).mean())
    return Loss(total=total, metrics=metrics)


def _policy_gains(logprobs_B: Tensor, steps: Steps, settings: ActorCriticSettings) -> tuple[Tensor, float]:
    """What the policy gradient maximises at each step, and the share of steps whose gradient the clip stopped."""
    if settings.objective == "a2c":
        return logprobs_B * steps.advantages_B, 0.0
    surrogate = clipped_surrogate(
        probability_ratios(logprobs_B, steps.anchor_logprobs_B),
        steps.advantages_B,
        clip_low=settings.clip,
        clip_high=settings.clip,
    )
    return surrogate.values, float(surrogate.clipped.float().mean())


def learning_rate_at(settings: ActorCriticSettings, *, update: int) -> float:
    """The learning rate of the update that produces version ``update`` (counted from 1)."""
    return warmup_then_linear(
        settings.learning_rate,
        update=update,
        warmup_updates=0,
        anneal_updates=settings.anneal_updates,
        final_share=settings.learning_rate_final_share,
    )


def entropy_weight_at(settings: ActorCriticSettings, *, update: int) -> float:
    """The weight of the entropy in the update that produces version ``update`` (counted from 1)."""
    return linear(
        settings.entropy_weight,
        settings.entropy_weight_final,
        update=update,
        updates=settings.entropy_anneal_updates,
    )
