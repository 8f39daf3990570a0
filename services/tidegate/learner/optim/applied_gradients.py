"""Gradients that actors computed, applied by the learner's optimiser: A3C (Mnih 2016) with a bounded lag.

The original applies each gradient to whatever the parameters are by then. Here a gradient is a trajectory: it is
judged by its lag before it is applied, applied once, and counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.gradient_record import check_gradient, mean_gradient
from tidegate.algorithms.objectives import learning_rate_at
from tidegate.core.records import Array, Trajectory
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.optimizer_state import load_optimizer_arrays, optimizer_arrays, optimizer_tensors
from tidegate.learner.optim.policy_parameters import PolicyParameters, actor_critic_optimizer
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.ranks.port import Packed
from tidegate.models.policy_port import SegmentPolicy


@dataclass(frozen=True, slots=True)
class GradientBatch:
    """The records of one update, checked."""

    records: tuple[Mapping[str, Array], ...]


class AppliedGradientsTrainer:
    """Adam on the mean of a batch's gradients. Every rank would compute the same: more than one gain nothing."""

    def __init__(
        self, policy: SegmentPolicy, settings: ActorCriticSettings, *, seed: int, device: torch.device
    ) -> None:
        """``settings``: those of the optimiser; the objective's belong to the actors."""
        self._settings = settings
        self._device = device
        self._parameters = PolicyParameters(policy, seed=seed, device=device)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in self._parameters.trained.items()}
        self._optimizer = actor_critic_optimizer(self._parameters.trained, settings)

    def prepare(self, trajectories: Sequence[Trajectory]) -> GradientBatch:
        """Check the gradients.

        Raises:
            RecordError: a record is no gradient of this policy.
        """
        for trajectory in trajectories:
            check_gradient(trajectory.tensors, self._shapes, name=f"Trajectory {trajectory.trajectory_id}")
        return GradientBatch(tuple(trajectory.tensors for trajectory in trajectories))

    def update(self, batch: GradientBatch, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """One step along the mean of the gradients, clipped to ``max_grad_norm``."""
        settings = self._settings.under(response)
        gradients, losses = mean_gradient(batch.records, list(self._shapes), weights=response.weights)
        for name, parameter in self._parameters.trained.items():
            parameter.grad = torch.as_tensor(gradients[name], device=self._device)
        norm = float(
            torch.nn.utils.clip_grad_norm_(self._parameters.trained.values(), settings.max_grad_norm)
        )
        learning_rate = learning_rate_at(settings, update=number)
        self._optimizer.learning_rate = learning_rate
        if math.isfinite(norm):
            self._optimizer.step()
        return {**losses, "grad_norm": norm, "learning_rate": learning_rate}

    def policy(self) -> dict[str, Array]:
        """A copy of all parameters."""
        return self._parameters.copied()

    def state(self) -> TrainerState:
        """A copy of Adam's moments."""
        return TrainerState(tensors=optimizer_arrays(self._optimizer), values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Restore a checkpoint.

        Raises:
            StaleFolderError: it holds another network.
        """
        self._parameters.load(policy)
        load_optimizer_arrays(self._optimizer, state.tensors)

    def pack(self, batch: GradientBatch) -> Packed:
        """See ``ranks.port.SharedTrainer``: the tensors of each record, its number before their names."""
        tensors = {
            f"{index}/{name}": torch.as_tensor(array)
            for index, record in enumerate(batch.records)
            for name, array in record.items()
        }
        return Packed(tensors=tensors, values={})

    def unpack(self, packed: Packed) -> GradientBatch:
        """See ``ranks.port.SharedTrainer``."""
        records: dict[int, dict[str, Array]] = {}
        for key, tensor in packed.tensors.items():
            index, _, name = key.partition("/")
            records.setdefault(int(index), {})[name] = tensor.cpu().numpy()
        return GradientBatch(tuple(records[index] for index in sorted(records)))

    def live(self) -> dict[str, Tensor]:
        """See ``ranks.port.SharedTrainer``: parameters and moments."""
        return {**self._parameters.tensors, **optimizer_tensors(self._optimizer)}
