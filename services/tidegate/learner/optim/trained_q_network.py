"""What every trainer of a Q-network keeps: its parameters, the target network and the optimiser."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tidegate.algorithms.q_learning_settings import QLearningSettings
from tidegate.core.records import Array
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.optim.optimizer_state import load_optimizer_arrays, optimizer_arrays, optimizer_tensors
from tidegate.learner.optim.policy_parameters import PolicyParameters
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.target_network import TargetNetwork
from tidegate.models.policy_port import SegmentPolicy


class TrainedQNetwork:
    """``parameters``: as published. ``target`` and ``optimizer`` are kept in checkpoints alone."""

    def __init__(
        self, policy: SegmentPolicy, settings: QLearningSettings, *, seed: int, device: torch.device
    ) -> None:
        """Fresh parameters from ``seed``; the target network is equal to them."""
        self.parameters = PolicyParameters(policy, seed=seed, device=device)
        self.target = TargetNetwork(self.parameters.tensors, period=settings.target_period)
        self.optimizer = AdamW(
            self.parameters.trained,
            learning_rate=settings.learning_rate,
            epsilon=settings.adam_epsilon,
        )

    def live(self) -> dict[str, Tensor]:
        """All tensors, not copied: see ``ranks.port.SharedTrainer``."""
        return {
            **self.parameters.tensors,
            **optimizer_tensors(self.optimizer),
            **self.target.tensors(),
        }

    def state(self) -> TrainerState:
        """A copy of Adam's moments and of the target network."""
        return TrainerState(tensors=optimizer_arrays(self.optimizer) | self.target.arrays(), values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Restore a checkpoint.

        Raises:
            StaleFolderError: it holds another network.
        """
        self.parameters.load(policy)
        load_optimizer_arrays(self.optimizer, state.tensors)
        self.target.load(state.tensors)
