"""Segments to updates of ``models.mlp_actor_critic``; the maths is ``algorithms.objectives``."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tidegate.algorithms.objectives import (
    ActorCriticSettings,
    actor_critic_loss,
    learning_rate_at,
    minibatch_indices,
    prepare_update,
)
from tidegate.algorithms.segments import SegmentBatch, check_segment, stack_segments
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array, Trajectory
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.optim.gradients import gradient_step, mean_of
from tidegate.learner.optim.optimizer_state import (
    generator_array,
    load_generator_array,
    load_optimizer_arrays,
    optimizer_arrays,
)
from tidegate.learner.optim.port import TrainerState
from tidegate.models.mlp_actor_critic import (
    MlpSpec,
    check_params,
    forward,
    init_params,
    policy_logits,
    state_values,
    trainable,
)


class ActorCriticTrainer:
    """V-trace and its kin with Adam. The same seed and batches give the same parameters."""

    def __init__(
        self, spec: MlpSpec, settings: ActorCriticSettings, *, seed: int, device: torch.device
    ) -> None:
        """Fresh parameters from ``seed``."""
        self._spec = spec
        self._settings = settings
        self._device = device
        self._params = {
            name: torch.tensor(np.ascontiguousarray(array), device=device)
            for name, array in init_params(spec, np.random.default_rng(seed)).items()
        }
        trained = trainable(self._params)
        for parameter in trained.values():
            parameter.requires_grad_()
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizer = AdamW(trained, learning_rate=settings.learning_rate, epsilon=settings.adam_epsilon)

    def prepare(self, trajectories: Sequence[Trajectory]) -> SegmentBatch:
        """The segments side by side.

        Raises:
            RecordError: one of them fits no policy of this kind, or their lengths differ.
        """
        for trajectory in trajectories:
            check_segment(
                trajectory.tensors,
                name=f"Trajectory {trajectory.trajectory_id}",
                observation_size=self._spec.observation_size,
                num_actions=self._spec.num_actions,
            )
        return stack_segments([trajectory.tensors for trajectory in trajectories], device=self._device)

    def update(self, batch: SegmentBatch, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """``epochs`` times ``minibatches`` gradient steps, around the policy as it stands now."""
        settings = self._settings.under(response)
        learning_rate = learning_rate_at(settings, update=number)
        self._optimizer.learning_rate = learning_rate
        with torch.no_grad():
            logits_TNA = policy_logits(self._params, batch.observations_SNO[:-1], torch)
            values_SN = state_values(self._params, batch.observations_SNO, torch)
        prepared = prepare_update(
            batch,
            logits_TNA=logits_TNA,
            values_SN=values_SN,
            settings=settings,
            segment_weights=response.weights,
        )
        measured: list[dict[str, float]] = []
        for index_B in minibatch_indices(len(prepared.steps), settings, generator=self._generator):
            steps = prepared.steps.rows(index_B.to(self._device))
            logits_BA, values_B = forward(self._params, steps.observations_BO, torch)
            loss = actor_critic_loss(logits_BA, values_B, steps, settings)
            measured.append(gradient_step(loss, self._optimizer, max_grad_norm=settings.max_grad_norm))
        return {**prepared.metrics, **mean_of(measured), "learning_rate": learning_rate}

    def policy(self) -> dict[str, Array]:
        """A copy of all parameters."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._params.items()}

    def state(self) -> TrainerState:
        """A copy of Adam's moments and of the random state."""
        tensors = optimizer_arrays(self._optimizer) | generator_array(self._generator)
        return TrainerState(tensors=tensors, values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Go on from a checkpoint.

        Raises:
            StaleFolderError: it holds another network.
        """
        try:
            check_params(self._spec, policy)
        except RecordError as error:
            raise StaleFolderError(
                "The checkpoint holds another network",
                why=error.what,
                fix="give the run file its own policy section back, or start in a new run folder",
            ) from error
        with torch.no_grad():
            for name, tensor in self._params.items():
                tensor.copy_(torch.tensor(policy[name]))
        load_optimizer_arrays(self._optimizer, state.tensors)
        load_generator_array(self._generator, state.tensors)
