"""Transitions of replay to updates of a Q-network; the maths is ``algorithms.q_learning`` and ``q_targets``.

Shapes: B transitions, H steps of the longest of them, A actions.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidegate.algorithms.loss import Loss
from tidegate.algorithms.q_learning import double_q_values, q_learning_loss, values_of
from tidegate.algorithms.q_learning_settings import QLearningSettings
from tidegate.algorithms.q_targets import transition_targets
from tidegate.algorithms.reward_scale import RewardSettings, scaled_rewards
from tidegate.algorithms.transition_batch import TransitionBatch, stack_transitions, transition_tensors
from tidegate.core.records import Array
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.gradients import not_finite, shared_gradient_step
from tidegate.learner.optim.policy_network import PolicyNetwork, Precision
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.learner.optim.trained_q_network import TrainedQNetwork
from tidegate.learner.ranks.port import ALONE, Packed, Ranks
from tidegate.learner.ranks.share import rows_of, share_of_rows
from tidegate.models.policy_port import SegmentPolicy


class QLearner:
    """Double dueling DQN with Adam and a target network. The same seed and batches give the same parameters."""

    def __init__(
        self,
        policy: SegmentPolicy,
        settings: QLearningSettings,
        *,
        seed: int,
        device: torch.device,
        reward: RewardSettings,
        precision: Precision = "float32",
        ranks: Ranks = ALONE,
    ) -> None:
        """Fresh parameters from ``seed``; ``reward``: what updates make of rewards; ``ranks`` make each together.

        ``precision``: of convolutions.
        """
        self._policy = policy
        self._expected = transition_tensors(policy.description)
        self._settings = settings
        self._device = device
        self._reward = reward
        self._ranks = ranks
        self._trained = TrainedQNetwork(policy, settings, seed=seed, device=device)
        params, target_params = self._trained.parameters.tensors, self._trained.target.params
        self._network = PolicyNetwork(policy, params, precision=precision, device=device)
        self._target_network = PolicyNetwork(policy, target_params, precision=precision, device=device)
        self._priorities_B: NDArray[np.float32] | None = None

    def prepare(self, units: ReplayUnits, /) -> TransitionBatch:
        """The units as tensors.

        Raises:
            RecordError: they are no transitions of this policy's environment.
        """
        weights_B = units.importance_weights(self._settings.importance_exponent)
        return stack_transitions(units.tensors, self._expected, weights_B=weights_B, device=self._device)

    def update(self, batch: TransitionBatch, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """One gradient step."""
        del number
        settings = self._settings.under(response)
        self._trained.optimizer.learning_rate = settings.learning_rate
        rewards_BH = scaled_rewards(batch.rewards_BH, self._reward, torch)
        weights_B = batch.weights_B
        if response.weights:
            weights_B = weights_B * torch.tensor(response.weights, device=self._device)
        mine = share_of_rows(len(batch), rank=self._ranks.rank, count=self._ranks.count)
        values_B = values_of(self._values(self._network, batch.observations, mine), batch.actions_B[mine])
        targets_B = self._targets(batch, rewards_BH, mine, settings)

        def loss_of(outputs_B2: Tensor) -> Loss:
            values_B, targets_B = outputs_B2[:, 0], outputs_B2[:, 1].detach()
            self._priorities_B = (targets_B - values_B).detach().abs().cpu().numpy()
            return q_learning_loss(values_B, targets_B, weights_B, huber_width=settings.huber_width)

        metrics = shared_gradient_step(
            # Targets travel with the values, so that each rank computes only its own.
            torch.stack([values_B, targets_B], dim=1),
            loss_of,
            self._trained.optimizer,
            rows_B=rows_of(mine, device=self._device),
            num_rows=len(batch),
            ranks=self._ranks,
            max_grad_norm=settings.max_grad_norm,
        )
        self._trained.target.count_step()
        metrics = {
            **metrics,
            "learning_rate": settings.learning_rate,
            "reward_mean": float(rewards_BH.sum() / batch.lengths_B.sum()),
        }
        if not not_finite(metrics):
            # The target network's follow with its next copy.
            self._trained.parameters.update_statistics(batch.observations)
        return metrics

    @torch.no_grad()
    def _targets(
        self, batch: TransitionBatch, rewards_BH: Tensor, part: slice, settings: QLearningSettings
    ) -> Tensor:
        online_BA = self._values(self._network, batch.next_observations, part)
        target_BA = self._values(self._target_network, batch.next_observations, part)
        return transition_targets(
            rewards_BH[part],
            batch.lengths_B[part],
            batch.terminated_B[part],
            double_q_values(online_BA, target_BA),
            torch,
            discount=settings.discount,
            rescale=settings.value_rescaling,
        )

    @staticmethod
    def _values(network: PolicyNetwork, observations: Mapping[str, Tensor], part: slice) -> Tensor:
        """The values (B, A) of all actions."""
        return network.outputs_and_values({name: rows[part] for name, rows in observations.items()}, {})[0]

    def priorities(self) -> NDArray[np.float32] | None:
        """The sizes of the TD errors before the newest update."""
        return self._priorities_B

    def policy(self) -> dict[str, Array]:
        """A copy of all parameters."""
        return self._trained.parameters.copied()

    def pack(self, batch: TransitionBatch) -> Packed:
        """See ``ranks.port.SharedTrainer``."""
        return Packed(tensors=batch.named(), values={})

    def unpack(self, packed: Packed) -> TransitionBatch:
        """See ``ranks.port.SharedTrainer``."""
        return TransitionBatch.of(packed.tensors)

    def live(self) -> dict[str, Tensor]:
        """See ``ranks.port.SharedTrainer``: parameters, moments and the target network."""
        return self._trained.live()

    def state(self) -> TrainerState:
        """A copy of Adam's moments and of the target network."""
        return self._trained.state()

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Restore a checkpoint.

        Raises:
            StaleFolderError: it holds another network.
        """
        self._trained.restore(policy, state)
