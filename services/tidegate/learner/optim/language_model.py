"""Groups of completions to updates of ``models.char_lm``; the maths is ``algorithms.grpo``.

Shapes: B completions, T their tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from tidegate.algorithms.advantages import group_advantages
from tidegate.algorithms.grpo import (
    GrpoInputs,
    GrpoSettings,
    grpo_loss,
    learning_rate_at,
    minibatch_rows,
    rows_with_signal,
)
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.ids import GroupId
from tidegate.core.records import Array, Trajectory
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.optim.gradients import mean_of, shared_gradient_step
from tidegate.learner.optim.optimizer_state import (
    GENERATOR,
    generator_array,
    load_generator_array,
    load_optimizer_arrays,
    optimizer_arrays,
    optimizer_tensors,
)
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.ranks.port import ALONE, Packed, Ranks
from tidegate.learner.ranks.share import share_of_groups
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.completion_batch import CompletionBatch, completion_logprobs, pack_completions

# Names the reference policy's parameters in a checkpoint.
_REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class ScoredCompletions:
    """A batch of groups: the tokens, who sampled them with which probability, and what they earned."""

    completions: CompletionBatch
    behavior_logprobs_BT: Tensor
    rewards_B: Tensor
    temperature: float


class LanguageModelTrainer:
    """GRPO and its kin with AdamW. The same seed and batches give the same parameters."""

    def __init__(
        self,
        spec: CharLmSpec,
        settings: GrpoSettings,
        *,
        seed: int,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        """Fresh parameters from ``seed``; a warm-up may still replace them (``begin_from``).

        ``ranks`` make each update together.
        """
        self._ranks = ranks
        self._settings = settings
        self._device = device
        self._generator = torch.Generator().manual_seed(seed)
        self.model = CharLm(spec, generator=self._generator).to(device)
        self._reference: CharLm | None = None
        self._optimizer = AdamW(
            dict(self.model.named_parameters()),
            learning_rate=settings.learning_rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            weight_decay=settings.weight_decay,
        )
        self._note_reference(self.model.to_arrays())

    def begin_from(self, policy: Mapping[str, Array]) -> None:
        """Start from these parameters, which are also the reference policy.

        Raises:
            RecordError: they are not those of this network.
        """
        self.model.load_arrays(policy)
        self._note_reference(policy)

    def prepare(self, trajectories: Sequence[Trajectory]) -> ScoredCompletions:
        """The completions, each prompt once.

        Raises:
            RecordError: one has no reward or misses a tensor, or was sampled unlike the others.
        """
        group_of: dict[GroupId, int] = {}
        prompts: list[Array] = []
        for trajectory in trajectories:
            _check_completion(trajectory, like=trajectories[0], context_length=self.model.spec.context_length)
            if trajectory.group_id not in group_of:
                group_of[trajectory.group_id] = len(prompts)
                prompts.append(trajectory.tensors["prompt_tokens"])
        completions = pack_completions(
            prompts,
            [trajectory.tensors["tokens"] for trajectory in trajectories],
            group_index=[group_of[trajectory.group_id] for trajectory in trajectories],
        )
        logprobs_BT = np.zeros(tuple(completions.tokens_BT.shape), dtype=np.float32)
        for row, trajectory in enumerate(trajectories):
            logprobs = trajectory.tensors["behavior_logprobs"]
            logprobs_BT[row, : len(logprobs)] = logprobs
        return ScoredCompletions(
            completions=_on(completions, self._device),
            behavior_logprobs_BT=torch.tensor(logprobs_BT, device=self._device),
            rewards_B=torch.tensor(
                [trajectory.reward for trajectory in trajectories], dtype=torch.float32, device=self._device
            ),
            temperature=trajectories[0].sampler.temperature,
        )

    def update(
        self, batch: ScoredCompletions, *, number: int, response: Response = FRESH
    ) -> dict[str, float]:
        """``minibatches`` gradient steps of whole groups, around the policy as it stands now.

        A batch in which no group tells one completion from another changes nothing, and still makes a version.
        """
        settings = self._settings.under(response)
        learning_rate = learning_rate_at(settings, update=number)
        self._optimizer.learning_rate = learning_rate
        num_rows = len(batch.rewards_B)
        group_index_B = batch.completions.group_index_B
        signal_B = rows_with_signal(batch.rewards_B, group_index_B)
        rows_B = signal_B if settings.drop_zero_signal else torch.arange(num_rows, device=self._device)
        metrics = {
            "learning_rate": learning_rate,
            "zero_signal_fraction": 1.0 - len(signal_B) / num_rows,
            "reward_mean": float(batch.rewards_B.mean()),
        }
        if not len(signal_B):
            return {**metrics, "loss": 0.0, "ess": 1.0, "clipped_fraction": 0.0}
        completions = batch.completions.rows(rows_B)
        inputs = self._inputs(batch, completions, rows_B, response)
        measured: list[dict[str, float]] = []
        for index_B in minibatch_rows(
            completions.group_index_B, minibatches=settings.minibatches, generator=self._generator
        ):
            part = completions.rows(index_B)
            mine_B = self._share_of(part)
            measured.append(
                shared_gradient_step(
                    _logprobs_of_rows(self.model, part, mine_B, temperature=batch.temperature),
                    partial(
                        grpo_loss,
                        inputs=inputs.rows(index_B, num_tokens=part.tokens_BT.shape[1]),
                        settings=settings,
                    ),
                    self._optimizer,
                    rows_B=mine_B,
                    num_rows=len(index_B),
                    ranks=self._ranks,
                    max_grad_norm=settings.max_grad_norm,
                )
            )
        return {**metrics, **mean_of(measured)}

    def policy(self) -> dict[str, Array]:
        """A copy of all parameters."""
        return self.model.to_arrays()

    def pack(self, batch: ScoredCompletions) -> Packed:
        """Take a prepared batch apart."""
        completions = batch.completions
        return Packed(
            tensors={
                **{field.name: getattr(completions, field.name) for field in dataclasses.fields(completions)},
                "behavior_logprobs_BT": batch.behavior_logprobs_BT,
                "rewards_B": batch.rewards_B,
            },
            values={"temperature": batch.temperature},
        )

    def unpack(self, packed: Packed) -> ScoredCompletions:
        """What was packed."""
        tensors = dict(packed.tensors)
        return ScoredCompletions(
            behavior_logprobs_BT=tensors.pop("behavior_logprobs_BT"),
            rewards_B=tensors.pop("rewards_B"),
            completions=CompletionBatch(**tensors),
            temperature=packed.values["temperature"],
        )

    def live(self) -> dict[str, Tensor]:
        """Parameters, moments and random state, not copied."""
        return {
            **self._optimizer.parameters,
            **optimizer_tensors(self._optimizer),
            GENERATOR: self._generator.get_state(),
        }

    def state(self) -> TrainerState:
        """A copy of AdamW's moments, of the random state, and of the reference policy where there is one."""
        tensors = optimizer_arrays(self._optimizer) | generator_array(self._generator)
        if self._reference is not None:
            for name, array in self._reference.to_arrays().items():
                tensors[f"{_REFERENCE}/{name}"] = array
        return TrainerState(tensors=tensors, values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Go on from a checkpoint.

        Raises:
            StaleFolderError: it holds another network, or no reference policy although one is needed.
        """
        reference = {
            key[len(_REFERENCE) + 1 :]: array
            for key, array in state.tensors.items()
            if key.startswith(f"{_REFERENCE}/")
        }
        try:
            self.model.check_arrays(policy)
            if self._reference is not None:
                self._reference.load_arrays(reference)
        except RecordError as error:
            raise StaleFolderError(
                "The checkpoint does not fit this run file",
                why=error.what,
                fix="give the run file its own policy and learner sections back, or start in a new run folder",
            ) from error
        load_optimizer_arrays(self._optimizer, state.tensors)
        load_generator_array(self._generator, state.tensors)
        self.model.load_arrays(policy)

    def _inputs(
        self, batch: ScoredCompletions, completions: CompletionBatch, rows_B: Tensor, response: Response
    ) -> GrpoInputs:
        """What the objectives read of the rows that are trained on, under the policy before the first gradient step."""
        advantages_B = group_advantages(
            batch.rewards_B, batch.completions.group_index_B, normalise_by_std=self._settings.normalise_by_std
        )
        if response.weights:
            advantages_B = advantages_B * advantages_B.new_tensor(response.weights)
        proximal_BT = self._logprobs(self.model, completions, temperature=batch.temperature)
        reference_BT = (
            None
            if self._reference is None
            else self._logprobs(self._reference, completions, temperature=batch.temperature)
        )
        num_tokens = completions.tokens_BT.shape[1]
        return GrpoInputs(
            mask_BT=completions.mask_BT,
            advantages_B=advantages_B[rows_B],
            behavior_logprobs_BT=batch.behavior_logprobs_BT[rows_B, :num_tokens],
            proximal_logprobs_BT=proximal_BT,
            reference_logprobs_BT=reference_BT,
        )

    @torch.no_grad()
    def _logprobs(self, model: CharLm, completions: CompletionBatch, *, temperature: float) -> Tensor:
        """What ``model`` says to all completions; every rank computes its share of the groups."""
        mine_B = self._share_of(completions)
        part_BT = _logprobs_of_rows(model, completions, mine_B, temperature=temperature)
        return self._ranks.gather(part_BT, mine_B, num_rows=len(completions.group_index_B))

    def _share_of(self, completions: CompletionBatch) -> Tensor:
        return share_of_groups(completions.group_index_B, rank=self._ranks.rank, count=self._ranks.count)

    def _note_reference(self, policy: Mapping[str, Array]) -> None:
        if self._settings.kl_weight <= 0.0:
            return
        self._reference = CharLm(self.model.spec).to(self._device)
        self._reference.load_arrays(policy)


def _logprobs_of_rows(
    model: CharLm, completions: CompletionBatch, rows_B: Tensor, *, temperature: float
) -> Tensor:
    """Logprobs of some of the completions, as wide as the longest of all of them."""
    num_tokens = completions.tokens_BT.shape[1]
    if not len(rows_B):
        return next(model.parameters()).new_zeros(0, num_tokens)
    part_BT = completion_logprobs(model, completions.rows(rows_B), temperature=temperature)
    return F.pad(part_BT, (0, num_tokens - part_BT.shape[1]))


def _check_completion(trajectory: Trajectory, *, like: Trajectory, context_length: int) -> None:
    name = f"Trajectory {trajectory.trajectory_id}"
    for tensor_name in ("prompt_tokens", "tokens", "behavior_logprobs"):
        if tensor_name not in trajectory.tensors:
            raise RecordError(f"{name} has no {tensor_name}")
    if len(trajectory.tensors["tokens"]) != len(trajectory.tensors["behavior_logprobs"]):
        raise RecordError(f"{name} has not one logprob a token")
    # The last token of a completion is chosen and never read.
    num_read = len(trajectory.tensors["prompt_tokens"]) + len(trajectory.tensors["tokens"]) - 1
    if num_read > context_length:
        raise RecordError(f"{name} has {num_read} tokens to read", why=f"the context holds {context_length}")
    if trajectory.reward is None:
        raise RecordError(f"{name} has no reward", why="no environment has scored it")
    if trajectory.sampler.temperature != like.sampler.temperature or trajectory.sampler.temperature <= 0.0:
        raise RecordError(
            f"{name} was sampled at temperature {trajectory.sampler.temperature}",
            why=f"its batch was sampled at {like.sampler.temperature}, and logprobs compare like with like",
        )


def _on(batch: CompletionBatch, device: torch.device) -> CompletionBatch:
    return CompletionBatch(
        prompts_GP=batch.prompts_GP.to(device),
        prompt_lengths_G=batch.prompt_lengths_G.to(device),
        tokens_BT=batch.tokens_BT.to(device),
        mask_BT=batch.mask_BT.to(device),
        group_index_B=batch.group_index_B.to(device),
    )
