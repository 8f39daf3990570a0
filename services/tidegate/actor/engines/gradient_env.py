"""Segments turned into gradients where they were played: the actor of A3C.

A segment is played under one version from its first step to its last, its gradient is computed with torch, and the
record holds the gradient in place of the segment (``algorithms.gradient_record``). An actor with this engine loads
torch, which costs 540 MB; in return the learner only adds gradients.

Mnih 2016, algorithm S3.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch

from tidegate.actor.engines.port import Completed, EngineControl, Rollouts, Sample
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.vector_env import VectorEnvEngine
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.gradient_record import KEPT_OF_SEGMENT, LOSSES, LOSSES_TENSOR, gradient_name
from tidegate.algorithms.objectives import actor_critic_loss, entropy_weight_at, prepare_update
from tidegate.algorithms.rewards import RewardSettings, transformed_rewards
from tidegate.algorithms.segment_batch import stack_segments
from tidegate.core.records import Array, PolicySnapshot, Sampler, Task
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.clock import Clock

CPU = torch.device("cpu")


def segment_gradient(
    policy: SegmentPolicy,
    params: Mapping[str, Array],
    segment: Mapping[str, Array],
    settings: ActorCriticSettings,
    *,
    reward: RewardSettings | None = None,
    update: int = 1,
) -> dict[str, Array]:
    """The record's tensors: the gradient of the actor-critic loss over a segment's steps, at ``params``.

    ``params`` are those that acted in the segment, so that no step is off-policy and no clip is active. ``reward``:
    what is made of rewards. ``update``: the number of the update, for the schedule of the entropy's weight.
    """
    settings = msgspec.structs.replace(settings, entropy_weight=entropy_weight_at(settings, update=update))
    batch = stack_segments([segment], device=CPU)
    if reward is not None:
        rewards_TN = transformed_rewards(batch.rewards_TN, reward, deviation=torch.ones(1))
        batch = dataclasses.replace(batch, rewards_TN=rewards_TN)
    # Copies: torch refuses memory that is read-only, as received tensors are.
    tensors = {name: torch.tensor(array) for name, array in params.items()}
    trained = policy.trainable(tensors)
    for parameter in trained.values():
        parameter.requires_grad_()
    with torch.no_grad():
        outputs_SNP, values_SN = policy.outputs_and_values(tensors, batch.observations, torch)
        logprobs_TN = policy.actions.logprobs(outputs_SNP[:-1], batch.actions_TN, torch)
    steps = prepare_update(batch, logprobs_TN=logprobs_TN, values_SN=values_SN, settings=settings).steps
    outputs_BP, values_B = policy.outputs_and_values(tensors, steps.observations, torch)
    logprobs_B, entropy_B = policy.actions.logprobs_and_entropy(outputs_BP, steps.actions_B, torch)
    loss = actor_critic_loss(logprobs_B, entropy_B, values_B, steps, settings)
    gradients = torch.autograd.grad(loss.total, list(trained.values()))
    metrics = {"loss": float(loss.total.detach()), **loss.metrics}
    return {
        **{name: segment[name] for name in KEPT_OF_SEGMENT},
        LOSSES_TENSOR: np.array([metrics[name] for name in LOSSES], np.float32),
        **{gradient_name(name): gradient.numpy() for name, gradient in zip(trained, gradients, strict=True)},
    }


class GradientEnvEngine:
    """A ``VectorEnvEngine`` whose samples are gradients."""

    def __init__(self, setting: EngineSetting, control: EngineControl, clock: Clock) -> None:
        """``setting.actor_critic``: the objective."""
        torch.set_num_threads(setting.threads)
        self._segments = VectorEnvEngine(msgspec.structs.replace(setting, one_version=True), control, clock)
        self._settings = setting.actor_critic
        self._reward = setting.workload.reward
        self._control = control

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """See ``engines.port.Engine``."""
        self._segments.check_policy(snapshot)

    def check_task(self, task: Task) -> None:
        """See ``engines.port.Engine``."""
        self._segments.check_task(task)

    def generate(self, tasks: Sequence[Task]) -> list[Rollouts]:
        """One gradient for each task.

        Raises:
            TidegateError: the environment failed; the next task recreates it.
        """
        finished: list[Rollouts] = []
        for task in tasks:
            for rollouts in self._segments.generate([task]):
                serving = self._control.serving
                assert serving is not None, "a segment was played under a policy"
                samples = tuple(self._with_gradient(sample, serving) for sample in rollouts.samples)
                finished.append(msgspec.structs.replace(rollouts, samples=samples))
        return finished

    def _with_gradient(self, sample: Sample, serving: PolicySnapshot) -> Sample:
        assert {span.version for span in sample.spans} == {serving.version}
        tensors = segment_gradient(
            self._segments.policy,
            serving.tensors,
            sample.tensors,
            self._settings,
            reward=self._reward,
            update=serving.version.step + 1,
        )
        return msgspec.structs.replace(sample, tensors=tensors)

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        """Refuse: environments have no prompts.

        Raises:
            ConfigError: always.
        """
        return self._segments.complete(prompts, sampler)

    def close(self) -> None:
        """Release the environments."""
        self._segments.close()


def open_engine(setting: EngineSetting, control: EngineControl, clock: Clock) -> GradientEnvEngine:
    """Open the engine for the registry."""
    return GradientEnvEngine(setting, control, clock)
