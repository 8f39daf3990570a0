"""Transitions from replay to updates of a squashed Gaussian policy; the maths is ``algorithms.sac``.

What is published is the policy alone. Critics, their targets and the temperature are state of the trainer.

Shapes: B transitions of a gradient step, b of them on this rank, C critics, F features, K components of an action.
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidegate.algorithms.loss import Loss
from tidegate.algorithms.q_targets import transition_targets
from tidegate.algorithms.reward_scale import RewardSettings, scaled_rewards
from tidegate.algorithms.sac import critic_loss, errors, soft_policy_loss, soft_values, temperature_loss
from tidegate.algorithms.sac_settings import SacSettings
from tidegate.algorithms.transition_batch import TransitionBatch, stack_transitions, transition_tensors
from tidegate.core.errors import StaleFolderError
from tidegate.core.records import Array
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.optim.critic_features import CriticFeatures
from tidegate.learner.optim.critics import CRITICS, Critics
from tidegate.learner.optim.gradients import gradient_step, not_finite, shared_gradient_step
from tidegate.learner.optim.optimizer_state import (
    GENERATOR,
    generator_array,
    load_generator_array,
    load_optimizer_arrays,
    optimizer_arrays,
    optimizer_tensors,
)
from tidegate.learner.optim.policy_network import Precision
from tidegate.learner.optim.policy_parameters import VALUE_NETWORK, PolicyParameters
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.learner.ranks.port import ALONE, Packed, Ranks
from tidegate.learner.ranks.share import rows_of, share_of_rows
from tidegate.models.action_values import ActionValues
from tidegate.models.activations import Activation
from tidegate.models.gaussian import SquashedGaussian
from tidegate.models.policy_port import FeaturePolicy

TEMPERATURE = "temperature/log"


class SacTrainer:
    """Soft actor-critic with Adam. The same seed and batches give the same parameters."""

    def __init__(
        self,
        policy: FeaturePolicy,
        settings: SacSettings,
        *,
        seed: int,
        device: torch.device,
        hidden: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        reward: RewardSettings | None = None,
        precision: Precision = "float32",
        ranks: Ranks = ALONE,
    ) -> None:
        """Fresh parameters from ``seed``; ``policy`` has squashed actions; ``reward``: what updates make of rewards.

        ``hidden``: of critics, unless ``settings`` name their layers; with ``activation``. ``precision``: of
        convolutions.
        """
        actions = policy.actions
        assert isinstance(actions, SquashedGaussian), (
            "models.policies builds it so, or the run file was checked"
        )
        self._ranks = ranks
        self._reward = reward
        self._policy = policy
        self._actions = actions
        self._num_components = math.prod(actions.action_shape)
        self._expected = transition_tensors(policy.description)
        self._settings = settings
        self._device = device
        self._parameters = PolicyParameters(policy, seed=seed, device=device)
        self._params = self._parameters.tensors
        network = ActionValues(
            num_inputs=policy.num_features,
            num_components=self._num_components,
            hidden=settings.critic_hidden or hidden,
            activation=activation,
        )
        self._features = CriticFeatures(policy, self._params, precision=precision, device=device)
        # Beside the policy's own, which takes the seed as it is.
        rng = np.random.default_rng((seed, 1))
        self._critics = Critics(network, self._features, rng=rng, device=device)
        self._log_temperature = torch.tensor(
            math.log(settings.initial_temperature), device=device, requires_grad=True
        )
        self._generator = torch.Generator().manual_seed(seed)
        of_policy = {
            name: tensor
            for name, tensor in self._parameters.trained.items()
            # Critics train the features, and nothing trains a value beside them.
            if name not in self._features.trained and not name.startswith(VALUE_NETWORK)
        }
        self._policy_optimizer = self._adam(of_policy)
        self._critic_optimizer = self._adam(self._critics.trained)
        self._temperature_optimizer = self._adam({TEMPERATURE: self._log_temperature})
        self._priorities: NDArray[np.float32] | None = None

    def _adam(self, trained: Mapping[str, Tensor]) -> AdamW:
        return AdamW(trained, learning_rate=0.0, epsilon=self._settings.adam_epsilon)

    def prepare(self, batch: ReplayUnits, /) -> TransitionBatch:
        """The units as tensors.

        Raises:
            RecordError: a tensor is missing or does not fit the policy.
        """
        weights_B = batch.importance_weights(self._settings.importance_exponent)
        return stack_transitions(batch.tensors, self._expected, weights_B=weights_B, device=self._device)

    def update(self, batch: TransitionBatch, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """One gradient step of the critics, then of the policy, then of the temperature."""
        settings = self._settings.under(response)
        self._policy_optimizer.learning_rate = settings.policy_learning_rate
        self._critic_optimizer.learning_rate = settings.critic_learning_rate
        self._temperature_optimizer.learning_rate = settings.temperature_learning_rate
        batch = self._as_trained(batch, response)
        mine = share_of_rows(len(batch), rank=self._ranks.rank, count=self._ranks.count)
        rows_b = rows_of(mine, device=self._device)
        # Every rank draws all noise, so that their random states stay equal.
        noise_B2K = torch.randn((len(batch), 2, self._num_components), generator=self._generator)
        noise_b2K = noise_B2K[mine].to(self._device)
        share = batch.rows(mine)
        features_bF = self._features(share.observations)
        step = partial(
            shared_gradient_step,
            rows_B=rows_b,
            num_rows=len(batch),
            ranks=self._ranks,
            max_grad_norm=settings.max_grad_norm or math.inf,
        )
        targets_b = self._targets(share, noise_b2K[:, 0], settings)
        targets_B = self._ranks.gather(targets_b, rows_b, num_rows=len(batch))
        values_bC = self._critics.values(features_bF, share.actions_B).T
        values_BC = self._ranks.gather(values_bC, rows_b, num_rows=len(batch))
        of_critics = step(
            values_bC,
            lambda values: critic_loss(values.T, targets_B, weights_B=batch.weights_B),
            self._critic_optimizer,
        )
        if not_finite(of_critics):
            return of_critics  # nothing has moved, and what follows would
        outputs_bP = self._policy.outputs_of(self._params, features_bF.detach(), torch)
        actions_b, logprobs_b = self._actions.from_noise(outputs_bP, noise_b2K[:, 1], torch)
        new_values_Cb = self._critics.fixed_values(features_bF, actions_b)
        terms = torch.cat([logprobs_b[:, None], new_values_Cb.T], dim=1)
        logprobs_B = self._ranks.gather(logprobs_b, rows_b, num_rows=len(batch))
        of_policy = step(
            terms,
            partial(_policy_loss_of, temperature=self._log_temperature.detach().exp()),
            self._policy_optimizer,
        )
        of_temperature = self._step_temperature(logprobs_B, settings)
        self._critics.move_targets(settings.target_rate)
        self._priorities = errors(values_BC.T, targets_B).cpu().numpy()
        metrics = {
            **of_critics,
            "policy_loss": of_policy["policy_loss"],
            "entropy": of_policy["entropy"],
            "policy_grad_norm": of_policy["grad_norm"],
            "temperature": of_temperature["temperature"],
            "learning_rate": settings.policy_learning_rate,
            "reward_mean": float(batch.rewards_BH[:, 0].mean()),
        }
        if not not_finite(metrics):
            self._parameters.update_statistics(batch.observations)
        return metrics

    @torch.no_grad()
    def _targets(self, batch: TransitionBatch, noise_bK: Tensor, settings: SacSettings) -> Tensor:
        """Of the critics, (b,)."""
        outputs_bP = self._policy.outputs_of(self._params, self._features(batch.next_observations), torch)
        actions_b, logprobs_b = self._actions.from_noise(outputs_bP, noise_bK, torch)
        values_b = soft_values(
            self._critics.target_values(batch.next_observations, actions_b),
            logprobs_b,
            temperature=self._log_temperature.exp(),
        )
        return transition_targets(
            batch.rewards_BH, batch.lengths_B, batch.terminated_B, values_b, torch, discount=settings.discount
        )

    def _step_temperature(self, logprobs_B: Tensor, settings: SacSettings) -> dict[str, float]:
        target = settings.target_entropy
        loss = temperature_loss(
            self._log_temperature,
            logprobs_B,
            target_entropy=-float(self._num_components) if target is None else target,
        )
        if settings.temperature_learning_rate:
            # Every rank has the log densities of all, and makes the same step.
            gradient_step(loss, self._temperature_optimizer, max_grad_norm=math.inf)
        return loss.metrics

    def _as_trained(self, batch: TransitionBatch, response: Response) -> TransitionBatch:
        rewards_BH, weights_B = batch.rewards_BH, batch.weights_B
        if self._reward is not None:
            rewards_BH = scaled_rewards(rewards_BH, self._reward, torch)
        if response.weights:
            weights_B = weights_B * torch.tensor(response.weights, device=self._device)
        return dataclasses.replace(batch, rewards_BH=rewards_BH, weights_B=weights_B)

    def priorities(self) -> NDArray[np.float32] | None:
        """See ``replay_port.ReplayTrainer``: the critics' errors."""
        return self._priorities

    def policy(self) -> dict[str, Array]:
        """A copy of the policy's parameters."""
        return self._parameters.copied()

    def pack(self, batch: TransitionBatch) -> Packed:
        """See ``ranks.port.SharedTrainer``."""
        return Packed(tensors=batch.named(), values={})

    def unpack(self, packed: Packed) -> TransitionBatch:
        """See ``ranks.port.SharedTrainer``."""
        return TransitionBatch.of(packed.tensors)

    def live(self) -> dict[str, Tensor]:
        """See ``ranks.port.SharedTrainer``: all networks, moments, the temperature and the random state."""
        return {**self._params, **self._own(), **self._moments(), GENERATOR: self._generator.get_state()}

    def state(self) -> TrainerState:
        """A copy of the critics, of their targets, of the temperature, of all moments and of the random state."""
        own = {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._own().items()}
        moments = {
            name: array
            for optimizer in self._optimizers()
            for name, array in optimizer_arrays(optimizer).items()
        }
        return TrainerState(tensors=own | moments | generator_array(self._generator), values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Restore a checkpoint.

        Raises:
            StaleFolderError: it holds another network, or is none of this algorithm.
        """
        temperature = state.tensors.get(TEMPERATURE)
        if temperature is None:
            raise StaleFolderError(
                "The checkpoint holds no temperature",
                why="it was written by another learner.algorithm",
                fix="restore learner.algorithm, or start in a new run folder",
            )
        self._parameters.load(policy)
        self._critics.load(state.tensors)
        with torch.no_grad():
            self._log_temperature.copy_(torch.tensor(temperature))
        beside_policy = {CRITICS: self._critic_optimizer, TEMPERATURE: self._temperature_optimizer}
        load_optimizer_arrays(self._policy_optimizer, state.tensors, others=tuple(beside_policy))
        for prefix, optimizer in beside_policy.items():
            load_optimizer_arrays(optimizer, state.tensors, prefix=prefix)
        load_generator_array(self._generator, state.tensors)

    def _own(self) -> dict[str, Tensor]:
        return {**self._critics.tensors(), TEMPERATURE: self._log_temperature.detach()}

    def _optimizers(self) -> tuple[AdamW, ...]:
        return self._policy_optimizer, self._critic_optimizer, self._temperature_optimizer

    def _moments(self) -> dict[str, Tensor]:
        return {
            name: tensor
            for optimizer in self._optimizers()
            for name, tensor in optimizer_tensors(optimizer).items()
        }


def _policy_loss_of(terms: Tensor, *, temperature: Tensor) -> Loss:
    """Of log densities, in the first column, and the critics' values."""
    return soft_policy_loss(terms[:, 0], terms[:, 1:].T, temperature=temperature)
