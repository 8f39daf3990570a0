"""Segments to updates of a policy; the maths is ``algorithms.objectives``."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec
import torch
from torch import Tensor

from tidegate.algorithms.frame_stacks import FRAMES, with_frames
from tidegate.algorithms.loss import Loss
from tidegate.algorithms.objectives import (
    ActorCriticSettings,
    Steps,
    actor_critic_loss,
    entropy_weight_at,
    learning_rate_at,
    minibatch_indices,
    prepare_update,
)
from tidegate.algorithms.rewards import ReturnStatistics, RewardSettings, transformed_rewards
from tidegate.algorithms.segment_batch import SegmentBatch, stack_segments
from tidegate.algorithms.segments import check_segment, segment_tensors
from tidegate.core.records import Array, Trajectory
from tidegate.core.response import FRESH, Response
from tidegate.core.spaces import is_observation
from tidegate.learner.optim.dense_gradients import DenseGradients, dense_gradients
from tidegate.learner.optim.gradients import mean_of, not_finite, shared_gradient_step
from tidegate.learner.optim.optimizer_state import (
    GENERATOR,
    generator_array,
    load_generator_array,
    load_optimizer_arrays,
    optimizer_arrays,
    optimizer_tensors,
)
from tidegate.learner.optim.policy_network import PolicyNetwork, Precision
from tidegate.learner.optim.policy_parameters import PolicyParameters, actor_critic_optimizer
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.sequence_network import SequenceNetwork
from tidegate.learner.ranks.port import ALONE, Packed, Ranks
from tidegate.learner.ranks.share import rows_of, share_of_rows
from tidegate.models.distributions import ActionDistribution
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.recurrent import RecurrentPolicy


@dataclasses.dataclass(frozen=True, slots=True)
class Minibatch:
    """The steps of a gradient step, and this rank's outputs and values (…, P + 1) of those at ``rows_B``."""

    steps: Steps
    outputs: Tensor
    rows_B: Tensor


class ActorCriticTrainer:
    """V-trace and related objectives with Adam. The same seed and batches give the same parameters."""

    def __init__(
        self,
        policy: SegmentPolicy,
        settings: ActorCriticSettings,
        *,
        seed: int,
        device: torch.device,
        reward: RewardSettings | None = None,
        precision: Precision = "float32",
        ranks: Ranks = ALONE,
        updates_per_version: int = 1,
    ) -> None:
        """Fresh parameters from ``seed``; ``reward``: what updates make of rewards; ``ranks`` make each together.

        ``precision``: of convolutions. ``updates_per_version``: how many updates a published version has, so that
        a step's lag is counted in versions.
        """
        self._updates_per_version = updates_per_version
        self._ranks = ranks
        self._reward = reward
        self._returns = ReturnStatistics(device=device)
        self._policy = policy
        self._tensors = segment_tensors(policy.description, memory_size=policy.memory_size)
        self._settings = settings
        self._device = device
        self._parameters = PolicyParameters(policy, seed=seed, device=device)
        self._params = self._parameters.tensors
        self._network = PolicyNetwork(policy, self._params, precision=precision, device=device)
        self._sequences = (
            SequenceNetwork(policy, self._params, self._network)
            if isinstance(policy, RecurrentPolicy)
            else None
        )
        self._dense = dense_gradients(policy, self._params, device=device)
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizer = actor_critic_optimizer(self._parameters.trained, settings)

    def prepare(self, trajectories: Sequence[Trajectory]) -> SegmentBatch:
        """Stack the segments.

        Raises:
            RecordError: a segment does not fit the policy, or their lengths differ.
        """
        segments: list[dict[str, Array]] = []
        for trajectory in trajectories:
            name = f"Trajectory {trajectory.trajectory_id}"
            segments.append(with_frames(trajectory.tensors, self._policy.observations, name=name))
            check_segment(segments[-1], self._tensors, name=name)
        return stack_segments(
            segments, device=self._device, spans=[trajectory.spans for trajectory in trajectories]
        )

    def update(self, batch: SegmentBatch, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """``epochs`` times ``minibatches`` gradient steps from the current policy."""
        settings = self._settings.under(response)
        settings = msgspec.structs.replace(
            settings, entropy_weight=entropy_weight_at(settings, update=number)
        )
        learning_rate = learning_rate_at(settings, update=number)
        self._optimizer.learning_rate = learning_rate
        batch = self._with_transformed_rewards(batch, discount=settings.discount)
        outputs_SNP, values_SN = self._outputs_and_values(batch)
        before, updates_since = divmod(number - 1, self._updates_per_version)
        prepared = prepare_update(
            batch,
            logprobs_TN=self._policy.actions.logprobs(outputs_SNP[:-1], batch.actions_TN, torch),
            values_SN=values_SN,
            settings=settings,
            segment_weights=response.weights,
            # Between two versions the parameters are those of none.
            version_step=before if updates_since == 0 else None,
        )
        measured: list[dict[str, float]] = []
        for _ in range(settings.epochs):
            epoch = list(self._epoch(prepared.steps, batch, settings))
            measured += epoch
            if settings.target_kl and mean_of(epoch).get("kl", 0.0) > settings.target_kl:
                break
        metrics = {
            **prepared.metrics,
            **mean_of(measured),
            "gradient_steps": float(len(measured)),
            "learning_rate": learning_rate,
            "reward_mean": float(batch.rewards_TN[batch.valid_TN].mean()),
        }
        if not not_finite(metrics):
            self._update_statistics(batch)
        return metrics

    def _epoch(
        self, steps: Steps, batch: SegmentBatch, settings: ActorCriticSettings
    ) -> Iterator[dict[str, float]]:
        """The gradient steps of one pass over the steps, in a random order."""
        if self._dense is not None:
            yield from self._dense_epoch(self._dense, steps, batch.frames, settings)
            return
        minibatches = (
            self._minibatches(steps, batch.frames, settings)
            if self._sequences is None
            else self._minibatches_of_columns(self._sequences, steps, batch, settings)
        )
        yield from (self._gradient_step(minibatch, settings) for minibatch in minibatches)

    def _dense_epoch(
        self,
        dense: DenseGradients,
        all_steps: Steps,
        frames: Mapping[str, Tensor],
        settings: ActorCriticSettings,
    ) -> Iterator[dict[str, float]]:
        for index_B in minibatch_indices(len(all_steps), settings, generator=self._generator):
            steps = all_steps.rows(index_B)
            mine = self._share_of(len(steps))
            observed = {name: tensor[mine] for name, tensor in steps.observations.items()}
            observations = self._network.observed(observed, frames)
            metrics = dense.compute(observations, steps, settings, ranks=self._ranks, mine=mine)
            if math.isfinite(metrics["grad_norm"]):
                self._optimizer.step()
            yield metrics

    def _gradient_step(self, minibatch: Minibatch, settings: ActorCriticSettings) -> dict[str, float]:
        steps = minibatch.steps
        return shared_gradient_step(
            minibatch.outputs,
            partial(_loss_of, actions=self._policy.actions, steps=steps, settings=settings),
            self._optimizer,
            rows_B=minibatch.rows_B,
            num_rows=len(steps),
            ranks=self._ranks,
            max_grad_norm=settings.max_grad_norm,
        )

    def _minibatches(
        self, all_steps: Steps, frames: Mapping[str, Tensor], settings: ActorCriticSettings
    ) -> Iterator[Minibatch]:
        """One pass over the steps in a random order; each minibatch is computed with the parameters of its turn."""
        for index_B in minibatch_indices(len(all_steps), settings, generator=self._generator):
            steps = all_steps.rows(index_B.to(self._device))
            mine = self._share_of(len(steps))
            outputs_BP, values_B = self._network.outputs_and_values(
                {name: tensor[mine] for name, tensor in steps.observations.items()}, frames
            )
            outputs = torch.cat([outputs_BP, values_B[:, None]], dim=1)
            yield Minibatch(steps, outputs, rows_of(mine, device=self._device))

    def _minibatches_of_columns(
        self, network: SequenceNetwork, all_steps: Steps, batch: SegmentBatch, settings: ActorCriticSettings
    ) -> Iterator[Minibatch]:
        """One pass over the environments of a batch in a random order, each with all of its steps."""
        # A step's position among the valid ones, by row and environment.
        index_TN = batch.valid_TN.flatten().cumsum(0).view_as(batch.valid_TN) - 1
        for part in minibatch_indices(batch.valid_TN.shape[1], settings, generator=self._generator):
            columns_C = part.to(self._device)
            valid_TC = batch.valid_TN[:, columns_C]
            steps = all_steps.rows(index_TN[:, columns_C][valid_TC])
            if not len(steps):
                continue
            mine = self._share_of(len(columns_C))
            row_TC = valid_TC.flatten().cumsum(0).view_as(valid_TC) - 1
            mine_valid = valid_TC[:, mine]
            outputs = network.outputs(batch, columns_C[mine])[:-1][mine_valid]
            yield Minibatch(steps, outputs, row_TC[:, mine][mine_valid])

    @torch.no_grad()
    def _with_transformed_rewards(self, batch: SegmentBatch, *, discount: float) -> SegmentBatch:
        if self._reward is None:
            return batch
        if self._reward.normalise:
            self._returns.add(batch, discount=discount)
        rewards_TN = transformed_rewards(batch.rewards_TN, self._reward, deviation=self._returns.deviation())
        return dataclasses.replace(batch, rewards_TN=rewards_TN)

    def _update_statistics(self, batch: SegmentBatch) -> None:
        """Only now: the policy that the update started from had the statistics that actors acted with."""
        if not self._policy.has_statistics:
            return
        valid = {name: tensor[:-1][batch.valid_TN] for name, tensor in batch.observations.items()}
        self._parameters.update_statistics(self._network.observed(valid, batch.frames))

    def policy(self) -> dict[str, Array]:
        """A copy of all parameters."""
        return self._parameters.copied()

    def pack(self, batch: SegmentBatch) -> Packed:
        """See ``ranks.port.SharedTrainer``."""
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        observations, frames = fields.pop("observations"), fields.pop("frames")
        frames = {f"{FRAMES}{name}": tensor for name, tensor in frames.items()}
        return Packed(tensors={**observations, **frames, **fields}, values={})

    def unpack(self, packed: Packed) -> SegmentBatch:
        """See ``ranks.port.SharedTrainer``."""
        observations: dict[str, Tensor] = {}
        frames: dict[str, Tensor] = {}
        fields: dict[str, Tensor] = {}
        for name, tensor in packed.tensors.items():
            if is_observation(name):
                observations[name] = tensor
            elif name.startswith(FRAMES):
                frames[name.removeprefix(FRAMES)] = tensor
            else:
                fields[name] = tensor
        return SegmentBatch(observations=observations, frames=frames, **fields)

    def live(self) -> dict[str, Tensor]:
        """See ``ranks.port.SharedTrainer``: parameters, moments and random state."""
        return {
            **self._params,
            **optimizer_tensors(self._optimizer),
            **self._returns.tensors(),
            GENERATOR: self._generator.get_state(),
        }

    def state(self) -> TrainerState:
        """A copy of Adam's moments, of the random state and of the returns' statistics."""
        returns = {name: tensor.cpu().numpy().copy() for name, tensor in self._returns.tensors().items()}
        tensors = optimizer_arrays(self._optimizer) | generator_array(self._generator) | returns
        return TrainerState(tensors=tensors, values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Restore a checkpoint.

        Raises:
            StaleFolderError: it holds another network.
        """
        self._parameters.load(policy)
        load_optimizer_arrays(self._optimizer, state.tensors)
        load_generator_array(self._generator, state.tensors)
        for name, tensor in self._returns.tensors().items():
            # Checkpoints of earlier versions have none: statistics begin then.
            if name in state.tensors:
                tensor.copy_(torch.tensor(state.tensors[name]))
            else:
                tensor.zero_()

    @torch.no_grad()
    def _outputs_and_values(self, batch: SegmentBatch) -> tuple[Tensor, Tensor]:
        """Outputs (S, N, P) and values (S, N) of a batch's observations; every rank computes its share of them."""
        num_steps, num_envs = batch.rewards_TN.shape
        num_rows = (num_steps + 1) * num_envs
        if self._sequences is not None:
            columns_C = rows_of(self._share_of(num_envs), device=self._device)
            part = self._sequences.measured(batch, columns_C).flatten(0, 1)
            firsts_S1 = num_envs * torch.arange(num_steps + 1, device=self._device)[:, None]
            whole = self._ranks.gather(part, (firsts_S1 + columns_C).flatten(), num_rows=num_rows)
            whole = whole.view(num_steps + 1, num_envs, -1)
            return whole[..., :-1], whole[..., -1]
        mine = self._share_of(num_rows)
        flat = {name: tensor.flatten(0, 1)[mine] for name, tensor in batch.observations.items()}
        part = self._network.measured(flat, batch.frames)
        whole = self._ranks.gather(part, rows_of(mine, device=self._device), num_rows=num_rows)
        whole = whole.view(num_steps + 1, num_envs, -1)
        return whole[..., :-1], whole[..., -1]

    def _share_of(self, num_rows: int) -> slice:
        return share_of_rows(num_rows, rank=self._ranks.rank, count=self._ranks.count)


def _loss_of(
    outputs: Tensor, *, actions: ActionDistribution, steps: Steps, settings: ActorCriticSettings
) -> Loss:
    """Of the distribution's outputs and, in the last column, values."""
    logprobs_B, entropy_B = actions.logprobs_and_entropy(outputs[:, :-1], steps.actions_B, torch)
    return actor_critic_loss(logprobs_B, entropy_B, outputs[:, -1], steps, settings)
