"""Prompts and their completions as padded tensors, and the logprobs that a model gives to the completions.

Shapes: G prompts of at most P tokens, B completions of at most T tokens; ``group_index_B`` names each one's prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tidegate.core.errors import RecordError
from tidegate.models.char_lm import CharLm
from tidegate.models.char_tokenizer import PAD, VOCABULARY_SIZE


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """What a learner step trains on, as integers; padding stands on the right.

    ``mask_BT`` is True on the tokens that the policy chose, its EOS included.
    """

    prompts_GP: Tensor
    prompt_lengths_G: Tensor
    tokens_BT: Tensor
    mask_BT: Tensor
    group_index_B: Tensor

    def rows(self, index_B: Tensor) -> "CompletionBatch":
        """These completions with the prompts they belong to; groups are numbered anew."""
        kept_G = torch.zeros_like(self.prompt_lengths_G, dtype=torch.bool)
        kept_G[self.group_index_B[index_B]] = True
        mask_BT = self.mask_BT[index_B]
        longest = int(mask_BT.sum(dim=1).max())
        return CompletionBatch(
            prompts_GP=self.prompts_GP[kept_G],
            prompt_lengths_G=self.prompt_lengths_G[kept_G],
            tokens_BT=self.tokens_BT[index_B, :longest],
            mask_BT=mask_BT[:, :longest],
            group_index_B=(kept_G.cumsum(0) - 1)[self.group_index_B[index_B]],
        )


def pad_tokens(rows: Sequence[ArrayLike], *, what: str) -> tuple[Tensor, Tensor]:
    """Token lists as one (rows, longest) tensor padded on the right, and their lengths.

    Raises:
        RecordError: there are no rows, one is empty, or an id is outside of the vocabulary.
    """
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    if not arrays or any(row.ndim != 1 or row.size == 0 for row in arrays):
        raise RecordError(f"{what} must be lists of at least one token, and at least one list")
    lengths = np.array([row.size for row in arrays], dtype=np.int64)
    padded = np.full((len(arrays), int(lengths.max())), PAD, dtype=np.int64)
    for index, row in enumerate(arrays):
        padded[index, : row.size] = row
    if padded.min() < 0 or padded.max() >= VOCABULARY_SIZE:
        raise RecordError(f"{what} hold token ids outside of the vocabulary of {VOCABULARY_SIZE}")
    return torch.tensor(padded), torch.tensor(lengths)


def pack_completions(
    prompts: Sequence[ArrayLike], completions: Sequence[ArrayLike], *, group_index: Sequence[int]
) -> CompletionBatch:
    """Pad prompts (one a group) and completions (one a row) into tensors; ``group_index`` says whose row each is.

    Raises:
        RecordError: a list is empty, an id is outside of the vocabulary, or a row belongs to no prompt.
    """
    prompts_GP, prompt_lengths_G = pad_tokens(prompts, what="Prompts")
    tokens_BT, lengths_B = pad_tokens(completions, what="Completions")
    if len(group_index) != len(completions) or not all(0 <= index < len(prompts) for index in group_index):
        raise RecordError(
            f"{len(completions)} completions need as many positions among {len(prompts)} prompts"
        )
    return CompletionBatch(
        prompts_GP=prompts_GP,
        prompt_lengths_G=prompt_lengths_G,
        tokens_BT=tokens_BT,
        mask_BT=torch.arange(tokens_BT.shape[1]) < lengths_B[:, None],
        group_index_B=torch.tensor(group_index, dtype=torch.int64),
    )


def completion_logprobs(model: CharLm, batch: CompletionBatch, *, temperature: float = 1.0) -> Tensor:
    """Logprobs (B, T) of the tokens of each completion behind its prompt; 0 on padding. Differentiable.

    A prompt is computed once for all of its completions, which is exact: its keys and values depend on it alone.
    ``temperature`` is the sampler's, so that the ratio to its logprobs compares like with like.

    Raises:
        RecordError: prompt and completion together are longer than the model's context.
    """
    hidden_GPD, cache = model(batch.prompts_GP, lengths_B=batch.prompt_lengths_G)
    groups = torch.arange(len(batch.prompt_lengths_G), device=hidden_GPD.device)
    hidden_BTD = hidden_GPD[groups, batch.prompt_lengths_G - 1].index_select(0, batch.group_index_B)[:, None]
    if batch.tokens_BT.shape[1] > 1:
        # The last token is chosen, never read.
        lengths_B = batch.mask_BT[:, 1:].sum(dim=1)
        later_BTD, _ = model(
            batch.tokens_BT[:, :-1], cache=cache.rows(batch.group_index_B), lengths_B=lengths_B
        )
        hidden_BTD = torch.cat([hidden_BTD, later_BTD], dim=1)
    logprobs_BTV = model.next_logprobs(hidden_BTD, temperature=temperature)
    chosen_BT = logprobs_BTV.gather(-1, batch.tokens_BT[..., None]).squeeze(-1)
    return chosen_BT.masked_fill(~batch.mask_BT, 0.0)
