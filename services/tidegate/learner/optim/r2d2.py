"""Sequences of replay to updates of a Q-network with memory: R2D2 (Kapturowski 2019).

The maths is ``algorithms.q_learning``, ``q_targets`` and ``q_sequences``.

Shapes: B sequences, L steps of each, S = L + 1 observations, A actions, M numbers of state.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidegate.algorithms.drawn_tensors import DrawnTensor, check_drawn
from tidegate.algorithms.loss import Loss
from tidegate.algorithms.q_learning import double_q_values, q_learning_loss, values_of
from tidegate.algorithms.q_learning_settings import QLearningSettings
from tidegate.algorithms.q_sequences import burn_ins, sequence_priorities, trained_steps
from tidegate.algorithms.q_targets import sequence_targets
from tidegate.algorithms.reward_scale import RewardSettings, scaled_rewards
from tidegate.algorithms.segments import segment_tensors
from tidegate.core.records import Array
from tidegate.core.response import FRESH, Response
from tidegate.core.spaces import MEMORY, recorded_dtype, recorded_shape
from tidegate.learner.optim.gradients import not_finite, shared_gradient_step
from tidegate.learner.optim.policy_network import PolicyNetwork, Precision
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.learner.optim.sequence_values import SequencePlan, sequence_values
from tidegate.learner.optim.trained_q_network import TrainedQNetwork
from tidegate.learner.ranks.port import ALONE, Packed, Ranks
from tidegate.learner.ranks.share import rows_of, share_of_rows
from tidegate.models.policy_port import MemoryPolicy


@dataclasses.dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Sequences as tensors.

    ``observations``: (B, S, ...) by name. ``rewards_BL``: as recorded; everything past ``lengths_B`` is ignored.
    ``memory_BM``: the state before the first step. ``burn_ins_B``: first steps that are not trained. ``weights_B``:
    importance weights.
    """

    observations: dict[str, Tensor]
    actions_BL: Tensor
    rewards_BL: Tensor
    terminated_BL: Tensor
    truncated_BL: Tensor
    lengths_B: Tensor
    memory_BM: Tensor
    burn_ins_B: Tensor
    weights_B: Tensor

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.lengths_B)

    def rows(self, rows: slice) -> "SequenceBatch":
        """Some of the sequences."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        observations = {name: tensor[rows] for name, tensor in fields.pop("observations").items()}
        return SequenceBatch(observations=observations, **{name: each[rows] for name, each in fields.items()})


class R2d2Learner:
    """Double dueling DQN with memory, Adam and a target network. The same seed and batches, the same parameters."""

    def __init__(
        self,
        policy: MemoryPolicy,
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
        self._settings = settings
        self._device = device
        self._reward = reward
        self._ranks = ranks
        self._trained = TrainedQNetwork(policy, settings, seed=seed, device=device)
        network = PolicyNetwork(policy, self._trained.parameters.tensors, precision=precision, device=device)
        self._in_precision = network.in_precision
        self._action = segment_tensors(policy.description)["actions"]
        self._priorities_B: NDArray[np.float32] | None = None

    def prepare(self, units: ReplayUnits, /) -> SequenceBatch:
        """The units as tensors.

        Raises:
            RecordError: they are no sequences of this policy's environment.
        """
        num_units, tensors = len(units), units.tensors
        rewards = tensors.get("rewards")
        num_steps = rewards.shape[1] if rewards is not None and rewards.ndim == 2 else 0
        expected = self._expected(num_steps)
        check_drawn(tensors, expected, num_units=num_units, unit="sequence")
        on_device = {name: torch.tensor(tensors[name], device=self._device) for name in expected}
        memory_BM = on_device[MEMORY]
        burn_ins_B = burn_ins(memory_BM.cpu().numpy(), burn_in=self._settings.sequences.burn_in)
        weights_B = units.importance_weights(self._settings.importance_exponent)
        return SequenceBatch(
            observations={name: on_device[name] for name in self._policy.observations},
            actions_BL=on_device["actions"].long(),
            rewards_BL=on_device["rewards"],
            terminated_BL=on_device["terminated"],
            truncated_BL=on_device["truncated"],
            lengths_B=on_device["lengths"].long(),
            memory_BM=memory_BM,
            burn_ins_B=torch.tensor(burn_ins_B, device=self._device),
            weights_B=torch.tensor(weights_B, device=self._device),
        )

    def update(self, batch: SequenceBatch, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """One gradient step; none where no sequence goes on after its burn-in."""
        del number
        settings = self._settings.under(response)
        self._trained.optimizer.learning_rate = settings.learning_rate
        rewards_BL = scaled_rewards(batch.rewards_BL, self._reward, torch)
        batch = dataclasses.replace(batch, rewards_BL=rewards_BL)
        weights_B = batch.weights_B
        if response.weights:
            weights_B = weights_B * torch.tensor(response.weights, device=self._device)
        steps_L = torch.arange(rewards_BL.shape[1], device=self._device)
        trained_BL = trained_steps(batch.lengths_B, batch.burn_ins_B, steps_L)
        inside_BL = trained_steps(batch.lengths_B, torch.zeros_like(batch.lengths_B), steps_L)
        metrics: dict[str, float] = {}
        if trained_BL.any():
            metrics = self._gradient_step(batch, trained_BL, weights_B, settings)
            self._trained.target.count_step()
        else:
            self._priorities_B = np.zeros(len(batch), np.float32)
        metrics = {
            **metrics,
            "learning_rate": settings.learning_rate,
            "reward_mean": float(rewards_BL[inside_BL].mean()),
        }
        if self._policy.has_statistics and not not_finite(metrics):
            # The target network's follow with its next copy.
            self._trained.parameters.update_statistics(
                {name: rows[:, :-1][inside_BL] for name, rows in batch.observations.items()}
            )
        return metrics

    def _gradient_step(
        self, batch: SequenceBatch, trained_BL: Tensor, weights_B: Tensor, settings: QLearningSettings
    ) -> dict[str, float]:
        mine = share_of_rows(len(batch), rank=self._ranks.rank, count=self._ranks.count)
        weights_BL = weights_B[:, None].expand_as(trained_BL)

        def loss_of(outputs_BL2: Tensor) -> Loss:
            values_BL, targets_BL = outputs_BL2[..., 0], outputs_BL2[..., 1].detach()
            errors_BL = (targets_BL - values_BL).detach()
            max_share = settings.sequences.priority_max_share
            priorities_B = sequence_priorities(errors_BL, trained_BL, torch, max_share=max_share)
            self._priorities_B = priorities_B.cpu().numpy()
            return q_learning_loss(
                values_BL[trained_BL],
                targets_BL[trained_BL],
                weights_BL[trained_BL],
                huber_width=settings.huber_width,
            )

        return shared_gradient_step(
            # Targets travel with the values, so that each rank computes only its own.
            self._values_and_targets(batch.rows(mine), settings),
            loss_of,
            self._trained.optimizer,
            rows_B=rows_of(mine, device=self._device),
            num_rows=len(batch),
            ranks=self._ranks,
            max_grad_norm=settings.max_grad_norm,
        )

    def _values_and_targets(self, batch: SequenceBatch, settings: QLearningSettings) -> Tensor:
        """The values of the actions taken, with their graph, and their targets, (B, L, 2); 0 in the burn-in."""
        plan = SequencePlan(
            batch.lengths_B.cpu().numpy(),
            batch.burn_ins_B.cpu().numpy(),
            num_steps=batch.rewards_BL.shape[1],
            device=self._device,
        )
        with self._in_precision():
            online_BSA = sequence_values(
                self._policy, self._trained.parameters.tensors, plan, batch.observations, batch.memory_BM
            )
        with torch.no_grad():
            with self._in_precision():
                target_BSA = sequence_values(
                    self._policy, self._trained.target.params, plan, batch.observations, batch.memory_BM
                )
            targets_LB = sequence_targets(
                batch.rewards_BL.T,
                batch.terminated_BL.T,
                (batch.terminated_BL | batch.truncated_BL).T,
                double_q_values(online_BSA.detach(), target_BSA).T,
                torch,
                n_steps=settings.sequences.n_steps,
                discount=settings.discount,
                rescale=settings.value_rescaling,
            )
        values_BL = values_of(online_BSA[:, :-1], batch.actions_BL)
        return torch.stack([values_BL, targets_LB.T], dim=-1)

    def _expected(self, num_steps: int) -> dict[str, DrawnTensor]:
        """Every tensor of drawn sequences of ``num_steps`` steps, by the store's names."""
        action = self._action
        expected = {
            name: DrawnTensor((num_steps + 1, *recorded_shape(leaf)), recorded_dtype(leaf))
            for name, leaf in self._policy.observations.items()
        }
        return expected | {
            "actions": DrawnTensor(
                (num_steps, *action.shape), action.dtypes[0], action.nums_values, step_axes=1
            ),
            "rewards": DrawnTensor((num_steps,), "float32"),
            "terminated": DrawnTensor((num_steps,), "bool"),
            "truncated": DrawnTensor((num_steps,), "bool"),
            "lengths": DrawnTensor((), "int32"),
            MEMORY: DrawnTensor((self._policy.memory_size,), "float32"),
        }

    def priorities(self) -> NDArray[np.float32] | None:
        """Of the sequences' TD errors before the newest update."""
        return self._priorities_B

    def policy(self) -> dict[str, Array]:
        """A copy of all parameters."""
        return self._trained.parameters.copied()

    def pack(self, batch: SequenceBatch) -> Packed:
        """See ``ranks.port.SharedTrainer``."""
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return Packed(tensors={**fields.pop("observations"), **fields}, values={})

    def unpack(self, packed: Packed) -> SequenceBatch:
        """See ``ranks.port.SharedTrainer``."""
        tensors = dict(packed.tensors)
        observations = {name: tensors.pop(name) for name in self._policy.observations}
        return SequenceBatch(observations=observations, **tensors)

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
