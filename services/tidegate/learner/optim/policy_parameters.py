"""The parameters of a ``SegmentPolicy`` on the learner's device, and the optimiser of actor-critic objectives."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array
from tidegate.learner.optim.adam import AdamW
from tidegate.models.policy_port import SegmentPolicy

# Parameters of the value alone, in every policy; ``value_learning_rate`` is theirs.
VALUE_NETWORK = "value."


class PolicyParameters:
    """``tensors``: all by name, as published. ``trained``: those that an optimiser changes, the same objects."""

    def __init__(self, policy: SegmentPolicy, *, seed: int, device: torch.device) -> None:
        """Fresh parameters from ``seed``."""
        self._policy = policy
        self.tensors: dict[str, Tensor] = {
            name: torch.tensor(np.ascontiguousarray(array), device=device)
            for name, array in policy.init_params(np.random.default_rng(seed)).items()
        }
        self.trained = policy.trainable(self.tensors)
        for parameter in self.trained.values():
            parameter.requires_grad_()

    def copied(self) -> dict[str, Array]:
        """A copy of all parameters."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.tensors.items()}

    @torch.no_grad()
    def update_statistics(self, observations: Mapping[str, Tensor]) -> None:
        """Count further observations (B, *leaf shape) in the running statistics, if the policy has any."""
        if not self._policy.has_statistics:
            return
        fixed = self.tensors.keys() - self.trained.keys()
        statistics = self._policy.updated_statistics(
            {name: self.tensors[name].cpu().numpy() for name in fixed},
            {name: tensor.cpu().numpy() for name, tensor in observations.items()},
        )
        for name, array in statistics.items():
            self.tensors[name].copy_(torch.tensor(array))

    @torch.no_grad()
    def load(self, arrays: Mapping[str, Array]) -> None:
        """Take the values of a checkpoint.

        Raises:
            StaleFolderError: they belong to another network.
        """
        try:
            self._policy.check_params(arrays)
        except RecordError as error:
            raise StaleFolderError(
                "The checkpoint holds another network",
                why=error.what,
                fix="restore the run file's policy section, or start in a new run folder",
            ) from error
        for name, tensor in self.tensors.items():
            tensor.copy_(torch.tensor(arrays[name]))


def actor_critic_optimizer(trained: Mapping[str, Tensor], settings: ActorCriticSettings) -> AdamW:
    """Adam with the settings' rates, the value network's own among them."""
    value_factor = (settings.value_learning_rate or settings.learning_rate) / settings.learning_rate
    return AdamW(
        trained,
        learning_rate=settings.learning_rate,
        epsilon=settings.adam_epsilon,
        rate_factors={name: value_factor for name in trained if name.startswith(VALUE_NETWORK)},
    )
