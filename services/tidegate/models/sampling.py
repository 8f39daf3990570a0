"""Batched generation, one token a step, so that the caller can swap the policy between tokens.

Shapes: G prompts, B = G × samples rows of completions, R unfinished rows, T = ``max_new_tokens``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidegate.core.errors import ConfigError, RecordError
from tidegate.models.causal_lm import KvCache
from tidegate.models.char_lm import CharLm
from tidegate.models.char_tokenizer import EOS, PAD
from tidegate.models.completion_batch import pad_tokens

# Finished rows stay in the computation until they are this share of the batch: compacting the cache costs about as
# much as a few steps of them.
COMPACT_AT_FINISHED_SHARE = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class SampledCompletion:
    """One finished completion. ``tokens`` (int32) end with EOS if it was sampled (``stop``)."""

    tokens: NDArray[np.int32]
    behavior_logprobs: NDArray[np.float32]
    finish_reason: Literal["stop", "length"]


class Generation:
    """The generation of completions for a batch of prompts.

    The model's parameters may be replaced between two calls of ``step`` (``load_arrays``): the token sampled by
    the n-th step, and its logprob, then belong to the parameters during that step. Keys and values of earlier
    parameters are kept, as in engines with in-flight updates; call ``refresh_cache`` after a swap to recompute them,
    so that every logprob is exactly that of its version given the token's prefix.

    Temperature 0 is greedy, with logprob 0 under that sampler, for evaluation. Truncated sampling (top-p, top-k) is
    deliberately not supported: it renormalises, and no learner could recompute its logprobs.
    """

    def __init__(
        self,
        model: CharLm,
        prompts: Sequence[Sequence[int]],
        *,
        num_samples: int,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> None:
        """Nothing is computed before the first step. Rows are ordered by prompt, ``num_samples`` each.

        Raises:
            ConfigError: ``num_samples`` or ``max_new_tokens`` is not positive, or ``temperature`` is negative.
            RecordError: a prompt is empty or holds an unknown token, or does not fit into the context with its
                completion.
        """
        if num_samples < 1 or max_new_tokens < 1 or not 0.0 <= temperature < float("inf"):
            raise ConfigError(
                f"Cannot generate {num_samples} samples of {max_new_tokens} tokens at temperature {temperature}",
                fix="set num_samples and max_new_tokens to at least 1 and the temperature to 0 (greedy) or more",
            )
        device = model.head.weight.device
        prompts_GP, prompt_lengths_G = pad_tokens(prompts, what="Prompts")
        self._prompts_GP, self._prompt_lengths_G = prompts_GP.to(device), prompt_lengths_G.to(device)
        longest = int(self._prompt_lengths_G.max()) + max_new_tokens
        if longest > model.spec.context_length:
            raise RecordError(
                f"A prompt with {max_new_tokens} new tokens needs a context of {longest} tokens",
                why=f"the model's holds {model.spec.context_length}",
                fix="raise policy.context_length, lower sampler.max_new_tokens, or shorten the prompt",
            )
        self._model = model
        self._temperature = temperature
        self._generator = generator
        self._group_of_B = torch.arange(len(prompts), device=device).repeat_interleave(num_samples)
        num_rows = len(self._group_of_B)
        self._tokens_BT = torch.full((num_rows, max_new_tokens), PAD, dtype=torch.int64, device=device)
        self._logprobs_BT = torch.zeros(num_rows, max_new_tokens, device=device)
        self._lengths_B = torch.full((num_rows,), max_new_tokens, dtype=torch.int64, device=device)
        self._finished_B = torch.zeros(num_rows, dtype=torch.bool, device=device)
        self._rows_R = torch.arange(num_rows, device=device)
        self._cache: KvCache | None = None
        self._num_steps = 0

    @property
    def num_steps(self) -> int:
        """Tokens generated so far for each unfinished row: the position of the next one."""
        return self._num_steps

    @property
    def num_unfinished(self) -> int:
        """The number of unfinished rows."""
        return int((~self._finished_B).sum())

    @property
    def done(self) -> bool:
        """Whether every row has ended, by EOS or by length."""
        return self._num_steps == self._tokens_BT.shape[1] or bool(self._finished_B.all())

    @torch.no_grad()
    def step(self) -> None:
        """Generate one token for every unfinished row; the first step also prefills the prompts."""
        assert not self.done, "a finished generation has no next token"
        position = self._num_steps
        if self._cache is None:
            hidden_RD = self._prefill()
        else:
            last_R1 = self._tokens_BT[self._rows_R, position - 1 : position]
            hidden_R1D, self._cache = self._model(last_R1, cache=self._cache)
            hidden_RD = hidden_R1D[:, 0]
        tokens_R, logprobs_R = self._choose(hidden_RD)
        writing_R = ~self._finished_B[self._rows_R]
        rows = self._rows_R[writing_R]
        self._tokens_BT[rows, position] = tokens_R[writing_R]
        self._logprobs_BT[rows, position] = logprobs_R[writing_R]
        ended = self._rows_R[writing_R & (tokens_R == EOS)]
        self._lengths_B[ended] = position + 1
        self._finished_B[ended] = True
        self._num_steps = position + 1
        self._compact()

    @torch.no_grad()
    def refresh_cache(self) -> None:
        """Recompute all keys and values with the current parameters."""
        if self._cache is None:
            return
        self._prefill()
        if self._num_steps > 1:
            written_RT = self._tokens_BT[self._rows_R, : self._num_steps - 1]
            _, self._cache = self._model(written_RT, cache=self._cache)

    def stop_prompt(self, prompt_index: int) -> None:
        """Abort a prompt's samples; their tokens are incomplete and must not be trained on."""
        stopped_B = (self._group_of_B == prompt_index) & ~self._finished_B
        self._lengths_B[stopped_B] = self._num_steps
        self._finished_B |= stopped_B
        if self._cache is not None:
            self._compact()

    def completions(self) -> list[SampledCompletion]:
        """All completions, ordered by prompt.

        Raises:
            RecordError: some rows are unfinished.
        """
        if not self.done:
            raise RecordError(
                f"{self.num_unfinished} completions are unfinished", fix="call step until done is True"
            )
        tokens_BT = self._tokens_BT.cpu().numpy().astype(np.int32)
        logprobs_BT = self._logprobs_BT.cpu().numpy()
        lengths_B = self._lengths_B.cpu().numpy()
        finished_B = self._finished_B.cpu().numpy()
        return [
            SampledCompletion(
                tokens=tokens_BT[row, : lengths_B[row]].copy(),
                behavior_logprobs=logprobs_BT[row, : lengths_B[row]].copy(),
                finish_reason="stop" if finished_B[row] else "length",
            )
            for row in range(len(tokens_BT))
        ]

    def _prefill(self) -> Tensor:
        """Prefill each prompt once and repeat its cache over its rows; the stream at each row's last prompt token."""
        hidden_GPD, cache = self._model(self._prompts_GP, lengths_B=self._prompt_lengths_G)
        group_of_R = self._group_of_B[self._rows_R]
        self._cache = cache.rows(group_of_R)
        return hidden_GPD[group_of_R, self._prompt_lengths_G[group_of_R] - 1]

    def _choose(self, hidden_RD: Tensor) -> tuple[Tensor, Tensor]:
        if self._temperature == 0.0:
            tokens_R = self._model.next_logprobs(hidden_RD).argmax(dim=-1)
            return tokens_R, torch.zeros(len(tokens_R), device=tokens_R.device)
        logprobs_RV = self._model.next_logprobs(hidden_RD, temperature=self._temperature)
        # A generator draws on its own device only.
        drawn_R1 = torch.multinomial(
            logprobs_RV.exp().to(self._generator.device), 1, generator=self._generator
        )
        tokens_R1 = drawn_R1.to(logprobs_RV.device)
        return tokens_R1[:, 0], logprobs_RV.gather(-1, tokens_R1)[:, 0]

    def _compact(self) -> None:
        """Remove finished rows from the computation once they are a large share of the batch."""
        writing_R = ~self._finished_B[self._rows_R]
        num_writing = int(writing_R.sum())
        if num_writing == 0 or num_writing > len(writing_R) * (1.0 - COMPACT_AT_FINISHED_SHARE):
            return
        assert self._cache is not None, "a step has filled the cache"
        self._cache = self._cache.rows(writing_R.nonzero()[:, 0])
        self._rows_R = self._rows_R[writing_R]


def generate(
    model: CharLm,
    prompts: Sequence[Sequence[int]],
    *,
    num_samples: int,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> list[SampledCompletion]:
    """All completions of one policy, ordered by prompt; raises as ``Generation`` does."""
    generation = Generation(
        model,
        prompts,
        num_samples=num_samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        generator=generator,
    )
    while not generation.done:
        generation.step()
    return generation.completions()
