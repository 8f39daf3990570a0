"""Groups of completions to updates of a causal language model; the maths is ``algorithms.grpo``.

Shapes: B completions, T their tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from tidegate.algorithms.grpo import Objective, grpo_loss, learning_rate_at, minibatch_rows, rows_with_signal
from tidegate.algorithms.grpo_inputs import GrpoInputs, grpo_inputs
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.algorithms.importance import mismatch_by_lag
from tidegate.algorithms.loss import Loss
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array, Trajectory
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.optim.gradients import gradient_step_in_passes, mean_of
from tidegate.learner.optim.optimizer_state import (
    GENERATOR,
    generator_array,
    load_generator_array,
    load_optimizer_arrays,
    optimizer_arrays,
    optimizer_tensors,
)
from tidegate.learner.optim.passes import in_passes
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.reference import ReferencePolicy
from tidegate.learner.optim.scored_completions import ScoredCompletions, scored_completions
from tidegate.learner.optim.token_gaps import LargestGaps, TokenGaps
from tidegate.learner.ranks.port import ALONE, Packed, Ranks
from tidegate.learner.ranks.share import share_of_groups
from tidegate.models.causal_lm import CausalLm
from tidegate.models.completion_batch import NOT_MEASURED, CompletionBatch, completion_outputs

# About 10 GB of activations with 135 million parameters in float32.
PASS_TOKENS = 4096


class LanguageModelTrainer:
    """GRPO, PPO and related objectives with AdamW. The same model, seed and batches give the same parameters."""

    def __init__(
        self,
        model: CausalLm,
        settings: GrpoSettings,
        *,
        seed: int,
        device: torch.device,
        ranks: Ranks = ALONE,
        pass_tokens: int = PASS_TOKENS,
        updates_per_version: int = 1,
        objective: Objective | None = None,
        num_token_gaps: int = 0,
    ) -> None:
        """``model`` on ``device`` is trained in place; a warm-up may still replace its parameters (``begin_from``).

        ``ranks`` make each update together. ``pass_tokens``: tokens, padding included, whose activations are in
        memory at once. ``updates_per_version``: how many updates a published version has, so that a token's lag is
        counted in versions. ``objective``: a user's own, in the place of the one that the settings name.
        ``num_token_gaps``: completions of an update whose ``token_gaps`` are kept.
        """
        self._num_token_gaps = num_token_gaps
        self._gaps = LargestGaps(num_token_gaps)
        self.model = model
        self._updates_per_version = updates_per_version
        self._objective = objective
        self._ranks = ranks
        self._settings = settings
        self._device = device
        self._pass_tokens = pass_tokens
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizer = AdamW(
            model.trainable(),
            learning_rate=settings.learning_rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            weight_decay=settings.weight_decay,
        )
        self._reference = ReferencePolicy(model) if settings.reads_reference else None

    def begin_from(self, policy: Mapping[str, Array]) -> None:
        """Start from these parameters, which are also the reference policy.

        Raises:
            RecordError: they are not those of this network.
        """
        self.model.load_arrays(policy)
        self._optimizer.clear_moments()
        if self._reference is not None:
            self._reference.set_parameters(policy)

    @property
    def pass_tokens(self) -> int:
        """Tokens, padding included, whose activations are in memory at once."""
        return self._pass_tokens

    def warmup_optimizer(self, *, learning_rate: float, weight_decay: float) -> AdamW:
        """An optimiser for a warm-up, in the memory of this trainer's moments; ``begin_from`` clears them."""
        return AdamW(
            self._optimizer.parameters,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            moments=self._optimizer.moments,
        )

    def prepare(self, trajectories: Sequence[Trajectory]) -> ScoredCompletions:
        """The completions, each prompt once.

        Raises:
            RecordError: one has no reward, lacks a tensor, does not fit the model, or has other sampler settings.
        """
        return scored_completions(
            trajectories,
            context_length=self.model.context_length,
            vocabulary_size=self.model.vocabulary_size,
            device=self._device,
        )

    def update(
        self, batch: ScoredCompletions, *, number: int, response: Response = FRESH
    ) -> dict[str, float]:
        """``minibatches`` gradient steps of whole groups, from the current policy.

        A batch without signal (equal rewards in each group) changes nothing and still produces a version.
        """
        self._gaps = LargestGaps(self._num_token_gaps)
        settings = self._settings.under(response)
        learning_rate = learning_rate_at(settings, update=number)
        self._optimizer.learning_rate = learning_rate
        num_rows = len(batch.rewards_B)
        signal_B = rows_with_signal(batch.rewards_B, batch.completions.group_index_B)
        metrics = {
            "learning_rate": learning_rate,
            "zero_signal_fraction": 1.0 - len(signal_B) / num_rows,
            "reward_mean": float(batch.rewards_B.mean()),
            **completion_lengths(batch.completions.mask_BT),
        }
        # With a critic, completions of equal reward still have a signal.
        equals_teach = settings.learns_from_equal_rewards or self.model.has_value_head
        if equals_teach or (len(signal_B) and not settings.drop_zero_signal):
            signal_B = torch.arange(num_rows, device=self._device)
        if not len(signal_B):
            return {**metrics, "loss": 0.0, "ess": 1.0, "clipped_fraction": 0.0, "update_tokens": 0.0}
        step = _Step(
            batch,
            rows_B=signal_B,
            settings=settings,
            response=response,
            version_step=(number - 1) // self._updates_per_version,
            objective=self._objective if settings.is_own else None,
            gaps=self._gaps,
        )
        metrics |= text_lengths(step.completions)
        # Later ones of a version measure what its first update changed, at every lag.
        is_first = (number - 1) % self._updates_per_version == 0
        parts = minibatch_rows(
            step.completions.group_index_B, minibatches=settings.minibatches, generator=self._generator
        )
        reference_BT = self._reference_logprobs(step.completions, temperature=batch.temperature)
        if len(parts) == 1:
            # A single gradient step starts from the proximal policy itself: its own outputs are the proximal logprobs.
            loss_of = partial(step.loss_of, reference_BT, measures_lags=is_first)
            return {**metrics, **self._gradient_step(step, parts[0], loss_of)}
        outputs = None
        if settings.reads_proximal or self.model.has_value_head:
            outputs = self._outputs(self.model, step.completions, temperature=batch.temperature)
        inputs = step.inputs(outputs, reference_BT)
        measured = [
            self._gradient_step(
                step,
                index_B,
                partial(step.loss_of_part, inputs, index_B, measures_lags=is_first and place == 0),
            )
            for place, index_B in enumerate(parts)
        ]
        return {**metrics, **mean_of(measured)}

    def token_gaps(self) -> list[TokenGaps]:
        """See ``token_gaps.TokenTrainer``."""
        return self._gaps.found()

    def policy(self) -> dict[str, Array]:
        """A copy of the trained parameters."""
        return self.model.to_arrays()

    def pack(self, batch: ScoredCompletions) -> Packed:
        """See ``ranks.port.SharedTrainer``."""
        return batch.pack()

    def unpack(self, packed: Packed) -> ScoredCompletions:
        """See ``ranks.port.SharedTrainer``."""
        return ScoredCompletions.unpack(packed)

    def live(self) -> dict[str, Tensor]:
        """See ``ranks.port.SharedTrainer``: parameters, moments and random state."""
        return {
            **self._optimizer.parameters,
            **optimizer_tensors(self._optimizer),
            GENERATOR: self._generator.get_state(),
        }

    def state(self) -> TrainerState:
        """A copy of AdamW's moments, of the random state, and of the reference policy where there is one."""
        tensors = optimizer_arrays(self._optimizer) | generator_array(self._generator)
        if self._reference is not None:
            tensors |= self._reference.arrays()
        return TrainerState(tensors=tensors, values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Restore a checkpoint.

        Raises:
            StaleFolderError: it holds another network, or no reference policy although one is needed.
        """
        try:
            self.model.check_arrays(policy)
            if self._reference is not None:
                self._reference.restore(state.tensors)
        except RecordError as error:
            raise StaleFolderError(
                "The checkpoint does not fit this run file",
                why=error.what,
                fix="restore the run file's policy and learner sections, or start in a new run folder",
            ) from error
        load_optimizer_arrays(self._optimizer, state.tensors)
        load_generator_array(self._generator, state.tensors)
        self.model.load_arrays(policy)

    def _gradient_step(
        self, step: "_Step", index_B: Tensor, loss_of: Callable[[Tensor], Loss]
    ) -> dict[str, float]:
        """One gradient step on the rows ``index_B``, every rank computing its share of the groups."""
        part = step.completions.rows(index_B)
        return gradient_step_in_passes(
            partial(_outputs_of_rows, self.model, part, temperature=step.batch.temperature),
            loss_of,
            self._optimizer,
            passes=in_passes(part, self._share_of(part), tokens_max=self._pass_tokens),
            num_rows=len(index_B),
            ranks=self._ranks,
            max_grad_norm=step.settings.max_grad_norm,
        )

    def _reference_logprobs(self, completions: CompletionBatch, *, temperature: float) -> Tensor | None:
        if self._reference is None:
            return None
        with self._reference.model() as model:
            return _logprobs(self._outputs(model, completions, temperature=temperature))

    @torch.no_grad()
    def _outputs(self, model: CausalLm, completions: CompletionBatch, *, temperature: float) -> Tensor:
        """Outputs of ``model`` for all completions; every rank computes its share of the groups."""
        mine_B = self._share_of(completions)
        passes = in_passes(completions, mine_B, tokens_max=self._pass_tokens)
        part = torch.cat(
            [_outputs_of_rows(model, completions, rows_B, temperature=temperature) for rows_B in passes]
        )
        return self._ranks.gather(part, mine_B, num_rows=len(completions.group_index_B))

    def _share_of(self, completions: CompletionBatch) -> Tensor:
        return share_of_groups(completions.group_index_B, rank=self._ranks.rank, count=self._ranks.count)


class _Step:
    """One learner step's batch without the groups that have no signal, and its inputs to the objectives."""

    def __init__(
        self,
        batch: ScoredCompletions,
        *,
        rows_B: Tensor,
        settings: GrpoSettings,
        response: Response,
        version_step: int,
        objective: Objective | None,
        gaps: LargestGaps,
    ) -> None:
        """``rows_B`` are whole groups; ``version_step``: of the policy that the step starts from; ``gaps`` collects."""
        self._gaps = gaps
        self.batch = batch
        self.settings = settings
        self._objective = objective
        self.completions = batch.completions.rows(rows_B)
        self._rows_B = rows_B
        num_tokens = self.completions.tokens_BT.shape[1]
        self._behavior_BT = batch.behavior_logprobs_BT[rows_B, :num_tokens]
        self._gap_BT = (version_step - batch.steps_BT[rows_B, :num_tokens]).clamp_min(0)
        weights = response.weights
        self._weights_B = batch.rewards_B.new_tensor(weights)[rows_B] if weights else None

    def inputs(self, outputs: Tensor | None, reference_BT: Tensor | None) -> GrpoInputs:
        """The objectives' inputs; ``outputs``: of the policy at the start of the step, where they are used."""
        settings = self.settings
        return grpo_inputs(
            settings,
            mask_BT=self.completions.mask_BT,
            rewards_B=self.batch.rewards_B[self._rows_B],
            group_index_B=self.completions.group_index_B,
            behavior_logprobs_BT=self._behavior_BT,
            proximal_logprobs_BT=_logprobs(outputs)
            if outputs is not None and settings.reads_proximal
            else None,
            reference_logprobs_BT=reference_BT,
            values_BT=None if outputs is None else _values(outputs),
            version_gap_BT=self._gap_BT,
            weights_B=self._weights_B,
        )

    def loss_of(self, reference_BT: Tensor | None, outputs: Tensor, *, measures_lags: bool) -> Loss:
        """The loss of all rows; their outputs are also those of the policy at the start of the step."""
        inputs = self.inputs(outputs.detach(), reference_BT)
        return self._loss(outputs, inputs, self._rows_B, measures_lags=measures_lags)

    def loss_of_part(
        self, inputs: GrpoInputs, index_B: Tensor, outputs: Tensor, *, measures_lags: bool
    ) -> Loss:
        """The loss of the rows ``index_B``, whose ``outputs`` these are."""
        part = inputs.rows(index_B, num_tokens=outputs.shape[1])
        return self._loss(outputs, part, self._rows_B[index_B], measures_lags=measures_lags)

    def _loss(self, outputs: Tensor, inputs: GrpoInputs, rows_B: Tensor, *, measures_lags: bool) -> Loss:
        """``rows_B``: of the batch; ``measures_lags``: these are outputs of the version that the update starts from."""
        loss = grpo_loss(
            _logprobs(outputs), inputs, self.settings, values_BT=_values(outputs), objective=self._objective
        )
        metrics = loss.metrics | _entropy(outputs, inputs.mask_BT)
        if measures_lags:
            log_ratios_BT = _logprobs(outputs).detach() - inputs.behavior_logprobs_BT
            self._gaps.add(log_ratios_BT, inputs.mask_BT, rows_B)
            if inputs.version_gap_BT is not None:
                gaps_N = inputs.version_gap_BT[inputs.mask_BT]
                metrics |= mismatch_by_lag(log_ratios_BT[inputs.mask_BT], gaps_N)
        return Loss(loss.total, metrics)


def completion_lengths(mask_BT: Tensor) -> dict[str, float]:
    """Tokens that the policy chose in each completion: their mean, and the most."""
    lengths_B = mask_BT.sum(dim=1)
    return {
        "completion_tokens_mean": float(lengths_B.float().mean()),
        "completion_tokens_max": float(lengths_B.max()),
    }


def text_lengths(completions: CompletionBatch) -> dict[str, float]:
    """Tokens that an update computes, each prompt once, and the mean of a text: a prompt and what continues it."""
    prompts_C = completions.prompt_lengths_Q[completions.prompt_index_C]
    return {
        "update_tokens": float(completions.prompt_lengths_Q.sum() + completions.lengths_B.sum()),
        "text_tokens_mean": float((prompts_C + completions.lengths_C).float().mean()),
    }


def _logprobs(outputs: Tensor) -> Tensor:
    return outputs[..., 0]


def _entropy(outputs: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """The mean entropy of the tokens that were measured; none of a part where none was."""
    entropies_N = outputs[..., 1].detach()[mask_BT]
    measured_N = entropies_N[entropies_N != NOT_MEASURED]
    return {"entropy": float(measured_N.mean())} if len(measured_N) else {}


def _values(outputs: Tensor) -> Tensor | None:
    return outputs[..., 2] if outputs.shape[-1] > 2 else None


def _outputs_of_rows(
    model: CausalLm, completions: CompletionBatch, rows_B: Tensor, *, temperature: float
) -> Tensor:
    """Outputs (B, T, 2 or 3) of some of the completions, padded to the longest of all."""
    num_tokens = completions.tokens_BT.shape[1]
    if not len(rows_B):
        num_outputs = 3 if model.has_value_head else 2
        return torch.zeros(0, num_tokens, num_outputs, device=completions.tokens_BT.device)
    outputs = completion_outputs(model, completions.rows(rows_B), temperature=temperature)
    return F.pad(outputs, (0, 0, 0, num_tokens - outputs.shape[1]))
