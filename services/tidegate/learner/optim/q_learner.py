"""Transitions of replay to updates of a Q-network; the maths is ``algorithms.q_learning`` and ``q_targets``.

Shapes: B transitions, n steps of each, A actions.
"""

import dataclasses
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
from tidegate.core.errors import RecordError
from tidegate.core.records import Array
from tidegate.core.response import FRESH, Response
from tidegate.core.spaces import recorded_shape
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.optim.gradients import shared_gradient_step
from tidegate.learner.optim.optimizer_state import load_optimizer_arrays, optimizer_arrays, optimizer_tensors
from tidegate.learner.optim.policy_network import PolicyNetwork, Precision
from tidegate.learner.optim.policy_parameters import PolicyParameters
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.learner.optim.target_network import TargetNetwork
from tidegate.learner.ranks.port import ALONE, Packed, Ranks
from tidegate.learner.ranks.share import rows_of, share_of_rows
from tidegate.models.policy_port import SegmentPolicy

NEXT = "next."


@dataclasses.dataclass(frozen=True, slots=True)
class TransitionBatch:
    """Transitions as tensors.

    ``observations`` and ``next_observations``: (B, ...) by the names of the recorded tensors, images in full.
    ``rewards_Bn``: as recorded, 0 past ``lengths_B``. ``weights_B``: importance weights.
    """

    observations: dict[str, Tensor]
    next_observations: dict[str, Tensor]
    actions_B: Tensor
    rewards_Bn: Tensor
    lengths_B: Tensor
    terminated_B: Tensor
    weights_B: Tensor

    def __len__(self) -> int:
        """The number of transitions."""
        return len(self.actions_B)


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
        self._settings = settings
        self._device = device
        self._reward = reward
        self._ranks = ranks
        self._parameters = PolicyParameters(policy, seed=seed, device=device)
        params = self._parameters.tensors
        self._network = PolicyNetwork(policy, params, precision=precision, device=device)
        self._target = TargetNetwork(params, period=settings.target_period)
        self._target_network = PolicyNetwork(policy, self._target.params, precision=precision, device=device)
        self._optimizer = AdamW(
            self._parameters.trained,
            learning_rate=settings.learning_rate,
            epsilon=settings.adam_epsilon,
        )
        self._priorities_B: NDArray[np.float32] | None = None

    def prepare(self, units: ReplayUnits, /) -> TransitionBatch:
        """The units as tensors.

        Raises:
            RecordError: they are no transitions of this policy's environment.
        """
        tensors = units.tensors
        observations: dict[str, Tensor] = {}
        following: dict[str, Tensor] = {}
        for name, leaf in self._policy.observations.items():
            shape = (len(units), *recorded_shape(leaf))
            observations[name] = self._tensor(tensors, name, shape)
            following[name] = self._tensor(tensors, f"{NEXT}{name}", shape)
        actions_B = self._tensor(tensors, "actions", (len(units),)).long()
        num_actions = self._policy.actions.num_outputs
        if len(units) and not 0 <= int(actions_B.min()) <= int(actions_B.max()) < num_actions:
            raise RecordError(
                f"Sampled actions from {int(actions_B.min())} to {int(actions_B.max())}",
                why=f"the environment has {num_actions}, counted from 0",
            )
        weights_B = units.importance_weights(self._settings.importance_exponent)
        return TransitionBatch(
            observations=observations,
            next_observations=following,
            actions_B=actions_B,
            rewards_Bn=self._tensor(tensors, "rewards", (len(units), -1)),
            lengths_B=self._tensor(tensors, "lengths", (len(units),)),
            terminated_B=self._tensor(tensors, "terminated", (len(units),)).bool(),
            weights_B=torch.tensor(weights_B, device=self._device),
        )

    def update(self, batch: TransitionBatch, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """One gradient step."""
        del number
        settings = self._settings.under(response)
        self._optimizer.learning_rate = settings.learning_rate
        rewards_Bn = scaled_rewards(batch.rewards_Bn, self._reward, torch)
        weights_B = batch.weights_B
        if response.weights:
            weights_B = weights_B * torch.tensor(response.weights, device=self._device)
        mine = share_of_rows(len(batch), rank=self._ranks.rank, count=self._ranks.count)
        values_B = values_of(self._values(self._network, batch.observations, mine), batch.actions_B[mine])
        targets_B = self._targets(batch, rewards_Bn, mine, settings)

        def loss_of(outputs_B2: Tensor) -> Loss:
            values_B, targets_B = outputs_B2[:, 0], outputs_B2[:, 1].detach()
            self._priorities_B = (targets_B - values_B).detach().abs().cpu().numpy()
            return q_learning_loss(values_B, targets_B, weights_B, huber_width=settings.huber_width)

        metrics = shared_gradient_step(
            # Targets travel with the values, so that each rank computes only its own.
            torch.stack([values_B, targets_B], dim=1),
            loss_of,
            self._optimizer,
            rows_B=rows_of(mine, device=self._device),
            num_rows=len(batch),
            ranks=self._ranks,
            max_grad_norm=settings.max_grad_norm,
        )
        self._target.count_step()
        # The target network's follow with its next copy.
        self._parameters.update_statistics(batch.observations)
        return {
            **metrics,
            "learning_rate": settings.learning_rate,
            "reward_mean": float(rewards_Bn.sum() / batch.lengths_B.sum()),
        }

    @torch.no_grad()
    def _targets(
        self, batch: TransitionBatch, rewards_Bn: Tensor, part: slice, settings: QLearningSettings
    ) -> Tensor:
        online_BA = self._values(self._network, batch.next_observations, part)
        target_BA = self._values(self._target_network, batch.next_observations, part)
        return transition_targets(
            rewards_Bn[part],
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

    def _tensor(self, tensors: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Tensor:
        found = tensors.get(name)
        fits = found is not None and len(found.shape) == len(shape)
        if (
            found is None
            or not fits
            or any(wanted not in (-1, size) for size, wanted in zip(found.shape, shape, strict=True))
        ):
            raise RecordError(
                f"Sampled units have {name} of shape {None if found is None else found.shape}, expected {shape}",
                why="transitions of this run's environment have it (trajectory_store.replay.windows)",
                fix="set trajectory_store.replay.unit to transition, and start in a new run folder",
            )
        return torch.tensor(found, device=self._device)

    def priorities(self) -> NDArray[np.float32] | None:
        """The sizes of the TD errors before the newest update."""
        return self._priorities_B

    def policy(self) -> dict[str, Array]:
        """A copy of all parameters."""
        return self._parameters.copied()

    def pack(self, batch: TransitionBatch) -> Packed:
        """See ``ranks.port.SharedTrainer``."""
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        following = {f"{NEXT}{name}": rows for name, rows in fields.pop("next_observations").items()}
        return Packed(tensors={**fields.pop("observations"), **following, **fields}, values={})

    def unpack(self, packed: Packed) -> TransitionBatch:
        """See ``ranks.port.SharedTrainer``."""
        tensors = dict(packed.tensors)
        names = self._policy.observations
        observations = {name: tensors.pop(name) for name in names}
        following = {name: tensors.pop(f"{NEXT}{name}") for name in names}
        return TransitionBatch(observations=observations, next_observations=following, **tensors)

    def live(self) -> dict[str, Tensor]:
        """See ``ranks.port.SharedTrainer``: parameters, moments and the target network."""
        return {
            **self._parameters.tensors,
            **optimizer_tensors(self._optimizer),
            **self._target.tensors(),
        }

    def state(self) -> TrainerState:
        """A copy of Adam's moments and of the target network."""
        return TrainerState(tensors=optimizer_arrays(self._optimizer) | self._target.arrays(), values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Restore a checkpoint.

        Raises:
            StaleFolderError: it holds another network.
        """
        self._parameters.load(policy)
        load_optimizer_arrays(self._optimizer, state.tensors)
        self._target.load(state.tensors)
