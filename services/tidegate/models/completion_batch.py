"""Prompts and their completions as padded tensors, and a model's logprobs and values of the completions.

Shapes: B completions of at most T tokens in groups, Q prompts of at most P tokens, C conversations. A completion is one
conversation, or several one after the other: those of an agent's episode that do not continue each other.
N tokens that the policy chose, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils import checkpoint

from tidegate.core.errors import RecordError
from tidegate.models.causal_lm import CausalLm
from tidegate.models.char_tokenizer import VOCABULARY_SIZE
from tidegate.models.prefill import STEM_TOKENS_MIN, beginning_of, padded

# Logits in memory at once, 64 MiB: those of 64 completions of 200 tokens would be 2.5 GB with a vocabulary of 49,152.
LOGITS_MAX = 1 << 24
# The entropy of one token in so many words of the vocabulary: every token's with 100 characters, one in twelve with
# 49,152 words, where a token's costs a fourth of its logits.
ENTROPY_WORDS = 4096
# The entropy of a token that was not measured.
NOT_MEASURED = -1.0


class BatchConversation(NamedTuple):
    """A part of a completion: which prompt it continues, and how many of the tokens are its own."""

    prompt: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """A learner step's tokens; padding is on the right.

    ``lengths_B``: tokens of each completion, replies of an environment included. ``mask_BT`` is True on the tokens that
    the policy chose, those that end its turns included, and False on environment replies and padding.
    ``group_index_B``: the group of each completion, from 0. Of each conversation, in the order of completions and of
    their tokens: ``rows_C`` its completion, ``lengths_C`` its tokens there, ``prompt_index_C`` the prompt it continues.
    """

    prompts_QP: Tensor
    prompt_lengths_Q: Tensor
    tokens_BT: Tensor
    lengths_B: Tensor
    mask_BT: Tensor
    group_index_B: Tensor
    rows_C: Tensor
    lengths_C: Tensor
    prompt_index_C: Tensor

    def to(self, device: torch.device) -> "CompletionBatch":
        """The same batch on a device."""
        return CompletionBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    @property
    def is_split(self) -> bool:
        """Whether a completion has more than one conversation."""
        return len(self.rows_C) > len(self.lengths_B)

    def rows(self, index_B: Tensor) -> "CompletionBatch":
        """Some of the completions, also repeatedly, with their prompts; groups and prompts are renumbered."""
        index_C, rows_C = self._conversations_of(index_B)
        kept_Q, prompt_index_C = _renumbered(self.prompt_index_C[index_C], count=len(self.prompt_lengths_Q))
        num_groups = int(self.group_index_B.max()) + 1
        _, group_index_B = _renumbered(self.group_index_B[index_B], count=num_groups)
        lengths_B = self.lengths_B[index_B]
        longest = int(lengths_B.max())
        return CompletionBatch(
            prompts_QP=self.prompts_QP[kept_Q],
            prompt_lengths_Q=self.prompt_lengths_Q[kept_Q],
            tokens_BT=self.tokens_BT[index_B, :longest],
            lengths_B=lengths_B,
            mask_BT=self.mask_BT[index_B, :longest],
            group_index_B=group_index_B,
            rows_C=rows_C,
            lengths_C=self.lengths_C[index_C],
            prompt_index_C=prompt_index_C,
        )

    def _conversations_of(self, index_B: Tensor) -> tuple[Tensor, Tensor]:
        """The conversations of some completions, and the place of each one's completion among these."""
        if not self.is_split:
            return index_B, torch.arange(len(index_B), device=index_B.device)
        num_B = torch.bincount(self.rows_C, minlength=len(self.lengths_B))
        # A completion's conversations lie side by side.
        firsts_B = num_B.cumsum(0) - num_B
        wanted_B = num_B[index_B]
        rows_C = torch.arange(len(index_B), device=index_B.device).repeat_interleave(wanted_B)
        begins_B = wanted_B.cumsum(0) - wanted_B
        places_C = torch.arange(len(rows_C), device=index_B.device) - begins_B[rows_C]
        return firsts_B[index_B][rows_C] + places_C, rows_C

    def conversation_tokens(self) -> Tensor:
        """The tokens (C, T) of each conversation, padded on the right."""
        if not self.is_split:
            return self.tokens_BT
        rows_N, columns_N, (conversations_N, places_N) = self._positions()
        tokens_CT = self.tokens_BT.new_zeros(len(self.rows_C), int(self.lengths_C.max()))
        tokens_CT[conversations_N, places_N] = self.tokens_BT[rows_N, columns_N]
        return tokens_CT

    def joined(self, values_CTD: Tensor) -> Tensor:
        """Values (B, T, D) of the tokens of completions, from those of the tokens of conversations. Differentiable."""
        if not self.is_split:
            return values_CTD
        rows_N, columns_N, (conversations_N, places_N) = self._positions()
        joined_BTD = values_CTD.new_zeros(*self.tokens_BT.shape, values_CTD.shape[-1])
        return joined_BTD.index_put((rows_N, columns_N), values_CTD[conversations_N, places_N])

    def _positions(self) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Row and column of each token among the completions, and its conversation and place in that."""
        num_conversations, longest = len(self.rows_C), int(self.lengths_C.max())
        places_CT = torch.arange(longest, device=self.rows_C.device).expand(num_conversations, longest)
        conversations_N, places_N = (places_CT < self.lengths_C[:, None]).nonzero(as_tuple=True)
        ends_C = self.lengths_C.cumsum(0)
        # A completion's conversations have all of its tokens, so it begins where those before it end.
        begins_B = self.lengths_B.cumsum(0) - self.lengths_B
        starts_C = ends_C - self.lengths_C - begins_B[self.rows_C]
        return (
            self.rows_C[conversations_N],
            starts_C[conversations_N] + places_N,
            (conversations_N, places_N),
        )


def _renumbered(index_N: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """Which of ``count`` numbers occur, and each number's place among these."""
    kept = torch.zeros(count, dtype=torch.bool, device=index_N.device)
    kept[index_N] = True
    return kept, (kept.cumsum(0) - 1)[index_N]


def pad_tokens(
    rows: Sequence[ArrayLike], *, what: str, vocabulary_size: int = VOCABULARY_SIZE
) -> tuple[Tensor, Tensor]:
    """Token lists as one (rows, longest) tensor padded on the right, and their lengths.

    Raises:
        RecordError: there are no rows, one is empty, or an id is outside of the vocabulary.
    """
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    if not arrays or any(row.ndim != 1 or row.size == 0 for row in arrays):
        raise RecordError(f"{what} must be lists of at least one token, and at least one list")
    if any(row.min() < 0 or row.max() >= vocabulary_size for row in arrays):
        raise RecordError(f"{what} hold token ids outside of the vocabulary of {vocabulary_size}")
    return padded(arrays, device=torch.device("cpu"))


def pack_completions(
    prompts: Sequence[ArrayLike],
    completions: Sequence[ArrayLike],
    *,
    group_index: Sequence[int],
    conversations: Sequence[Sequence[BatchConversation]] | None = None,
    chosen: Sequence[ArrayLike | None] | None = None,
    vocabulary_size: int = VOCABULARY_SIZE,
) -> CompletionBatch:
    """Pad prompts and completions (one a row) into tensors; ``group_index``: the group of each row.

    ``conversations``: of each row; None where each is one that continues its group's prompt. ``chosen``: which tokens
    of each row the policy chose; None for all.

    Raises:
        RecordError: a list is empty, an id is outside of the vocabulary, a row's conversations are not its tokens, or
            ``chosen`` is not one value per token.
    """
    prompts_QP, prompt_lengths_Q = pad_tokens(prompts, what="Prompts", vocabulary_size=vocabulary_size)
    tokens_BT, lengths_B = pad_tokens(completions, what="Completions", vocabulary_size=vocabulary_size)
    num_tokens: list[int] = lengths_B.numpy().tolist()
    if conversations is None:
        conversations = [
            [BatchConversation(index, length)] for index, length in zip(group_index, num_tokens, strict=False)
        ]
    if len(group_index) != len(completions) or len(conversations) != len(completions):
        raise RecordError(f"{len(completions)} completions need as many groups and lists of conversations")
    for parts, length in zip(conversations, num_tokens, strict=True):
        lengths = [part.num_tokens for part in parts]
        if sum(lengths) != length or min(lengths, default=0) < 1:
            raise RecordError(f"The conversations of a completion of {length} tokens have others")
    flat = [part for parts in conversations for part in parts]
    if not all(0 <= part.prompt < len(prompts) for part in flat):
        raise RecordError(f"A conversation continues none of the {len(prompts)} prompts")
    mask_BT = torch.arange(tokens_BT.shape[1]) < lengths_B[:, None]
    for row, choices in enumerate(chosen or ()):
        if choices is not None:
            mask_BT[row, : lengths_B[row]] = _choices(choices, num_tokens=int(lengths_B[row]))
    return CompletionBatch(
        prompts_QP=prompts_QP,
        prompt_lengths_Q=prompt_lengths_Q,
        tokens_BT=tokens_BT,
        lengths_B=lengths_B,
        mask_BT=mask_BT,
        group_index_B=torch.tensor(group_index, dtype=torch.int64),
        rows_C=torch.tensor([row for row, parts in enumerate(conversations) for _ in parts]),
        lengths_C=torch.tensor([part.num_tokens for part in flat]),
        prompt_index_C=torch.tensor([part.prompt for part in flat]),
    )


def _choices(choices: ArrayLike, *, num_tokens: int) -> Tensor:
    array = np.asarray(choices)
    if array.shape != (num_tokens,) or array.dtype != np.bool_:
        raise RecordError(
            f"The mask of a completion of {num_tokens} tokens is {array.dtype}{list(array.shape)}",
            why="it needs one bool per token",
        )
    return torch.tensor(array)


def completion_logprobs(model: CausalLm, batch: CompletionBatch, *, temperature: float = 1.0) -> Tensor:
    """Logprobs (B, T) in float32 of the chosen tokens of each completion; 0 elsewhere. Differentiable.

    A prompt is computed once for all of its completions, which is exact: its keys and values depend on it alone.
    ``temperature`` is the sampler's, so that ratios to its logprobs are comparable.

    Raises:
        RecordError: prompt and completion together are longer than the model's context.
    """
    return _logprobs_and_entropies(model, _hidden(model, batch), batch, temperature=temperature)[0]


def completion_outputs(model: CausalLm, batch: CompletionBatch, *, temperature: float = 1.0) -> Tensor:
    """A model's outputs for completions, (B, T, 2 or 3): ``completion_logprobs``, entropies, then its critic's values.

    An entropy, in nats and without a gradient, is of the distribution that its token was drawn from;
    ``NOT_MEASURED`` where the policy did not choose, and in a large vocabulary for most tokens (``ENTROPY_WORDS``).
    A value estimates the return before its token; 0 where the policy did not choose. The third column exists when the
    model has a value head. All are computed in the same pass.

    Raises:
        RecordError: prompt and completion together are longer than the model's context.
    """
    hidden_BTD = _hidden(model, batch)
    columns = list(_logprobs_and_entropies(model, hidden_BTD, batch, temperature=temperature))
    if model.has_value_head:
        columns.append(model.state_values(hidden_BTD).masked_fill(~batch.mask_BT, 0.0))
    return torch.stack(columns, dim=-1)


def _hidden(model: CausalLm, batch: CompletionBatch) -> Tensor:
    """The last hidden state (B, T, D) from which each token was chosen: that of the token before it."""
    stem = None
    lengths_Q, num_shared = batch.prompt_lengths_Q, _num_shared(batch)
    if num_shared >= STEM_TOKENS_MIN:
        # The common prefix of all prompts (instructions, examples) is computed once.
        _, read = model(batch.prompts_QP[:1, :num_shared])
        stem = beginning_of(read, num_tokens=num_shared, num_rows=len(lengths_Q))
        lengths_Q = lengths_Q - num_shared
    else:
        num_shared = 0
    hidden_QPD, cache = model(batch.prompts_QP[:, num_shared:], cache=stem, lengths_B=lengths_Q)
    prompts = torch.arange(len(lengths_Q), device=hidden_QPD.device)
    first_CD = hidden_QPD[prompts, lengths_Q - 1].index_select(0, batch.prompt_index_C)
    tokens_CT = batch.conversation_tokens()
    if tokens_CT.shape[1] == 1:
        return batch.joined(first_CD[:, None])
    # The last token is an output, never an input.
    later_CTD, _ = model(
        tokens_CT[:, :-1], cache=cache.rows(batch.prompt_index_C), lengths_B=batch.lengths_C - 1
    )
    return batch.joined(torch.cat([first_CD[:, None], later_CTD], dim=1))


def _num_shared(batch: CompletionBatch) -> int:
    """Length of the prompts' common prefix, excluding the last token of the shortest; 0 for a single prompt."""
    if len(batch.prompts_QP) < 2:
        return 0
    alike_P = (batch.prompts_QP == batch.prompts_QP[0]).all(dim=0)
    return min(int(alike_P.long().cumprod(0).sum()), int(batch.prompt_lengths_Q.min()) - 1)


def _logprobs_and_entropies(
    model: CausalLm, hidden_BTD: Tensor, batch: CompletionBatch, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """Of the chosen tokens, in chunks: the logits of all would be the largest tensor of training."""
    hidden_ND, tokens_N = hidden_BTD[batch.mask_BT], batch.tokens_BT[batch.mask_BT]
    num_tokens_max = max(1, LOGITS_MAX // model.vocabulary_size)

    stride = -(-model.vocabulary_size // ENTROPY_WORDS)

    def measured(hidden_ND: Tensor, tokens_N: Tensor) -> tuple[Tensor, Tensor]:
        logprobs_NV = model.next_logprobs(hidden_ND, temperature=temperature)
        logprobs_N = logprobs_NV.gather(-1, tokens_N[:, None])[:, 0]
        entropies_N = torch.full_like(logprobs_N, NOT_MEASURED, requires_grad=False)
        entropies_N[::stride] = _entropies(logprobs_NV.detach()[::stride])
        return logprobs_N, entropies_N

    if len(tokens_N) <= num_tokens_max:
        logprobs_N, entropies_N = measured(hidden_ND, tokens_N)
    else:
        # Logits are computed again on the way back instead of being kept until then.
        again = cast("Any", checkpoint).checkpoint  # its annotations are partial
        parts = [slice(at, at + num_tokens_max) for at in range(0, len(tokens_N), num_tokens_max)]
        options = {"use_reentrant": False, "preserve_rng_state": False}
        found = [again(measured, hidden_ND[part], tokens_N[part], **options) for part in parts]
        logprobs_N, entropies_N = (torch.cat(column) for column in zip(*found, strict=True))
    zeros_BT = torch.zeros(batch.mask_BT.shape, dtype=logprobs_N.dtype, device=logprobs_N.device)
    return (
        zeros_BT.masked_scatter(batch.mask_BT, logprobs_N),
        (zeros_BT + NOT_MEASURED).masked_scatter(batch.mask_BT, entropies_N),
    )


def _entropies(logprobs_NV: Tensor) -> Tensor:
    # Rounding makes that of a certain choice a little less than none.
    # torch declares no types for vecdot.
    sums_N = cast("Tensor", torch.linalg.vecdot(logprobs_NV.exp(), logprobs_NV))  # pyright: ignore[reportUnknownMemberType]
    return -sums_N.clamp(max=0.0)
