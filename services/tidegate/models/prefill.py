"""Prefill: computes the cache of contexts, with a bounded number of tokens per pass.

The stem is a common prefix of many contexts (instructions, examples): it is computed once, and each context from its
end.

Shapes: G contexts, P tokens of the longest, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tidegate.models.causal_lm import CausalLm, KvCache

# Any token: outputs of padding are never read.
PAD = 0

Context = tuple[int, ...]

# Recomputing a shorter prefix is faster than copying it.
STEM_TOKENS_MIN = 16
# Each context of a pass has a copy of the stem: the bound on cached tokens, as a multiple of a pass's tokens.
STEM_COPIES_MAX = 8


@dataclass(frozen=True, slots=True, eq=False)
class ReadContexts:
    """Prefilled contexts: their cache, and the hidden state at each last token."""

    contexts: tuple[Context, ...]
    cache: KvCache
    hidden_GD: Tensor

    def alone(self, index: int) -> "ReadContexts":
        """One of the contexts, without references to the others' memory."""
        num_tokens = len(self.contexts[index])
        rows = slice(index, index + 1)
        cache = KvCache(
            keys=tuple(layer[rows, :, :num_tokens].clone() for layer in self.cache.keys),
            values=tuple(layer[rows, :, :num_tokens].clone() for layer in self.cache.values),
            lengths_B=self.cache.lengths_B[rows].clone(),
            valid_BS=None,
        )
        return ReadContexts((self.contexts[index],), cache, self.hidden_GD[rows].clone())


class ContextReader:
    """Prefills contexts pass by pass; a context longer than a pass is prefilled in parts, alone.

    Holds the cache of at most one partly prefilled context, until it is complete or another one is requested first,
    and of one stem, until another stem replaces it.
    """

    def __init__(self, model: CausalLm, *, tokens_per_pass: int) -> None:
        """``tokens_per_pass``: padding included."""
        assert tokens_per_pass > 0, "a pass has at least one token"
        self._model = model
        self._tokens_per_pass = tokens_per_pass
        self._partly: tuple[Context, KvCache] | None = None
        self._stem: tuple[Context, KvCache] | None = None

    def read_next(self, wanted: Sequence[Context]) -> ReadContexts | None:
        """One pass over the first of ``wanted`` (distinct, none empty); None if none of them is complete yet."""
        if self._partly is not None and self._partly[0] != wanted[0]:
            self._partly = None
        known = self._known_of(wanted[0])
        if self._partly is not None or len(wanted[0]) - known > self._tokens_per_pass:
            return self._read_part(wanted[0])
        if not known and len(wanted) > 1:
            shortest = min(len(wanted[0]), len(wanted[1]))
            shared = min(num_shared(wanted[0], wanted[1]), shortest - 1, self._tokens_per_pass)
            if shared >= STEM_TOKENS_MIN:
                self._read_stem(wanted[0][:shared])
                return None
        together: list[Context] = []
        longest = 0
        for context in wanted:
            known_here = self._known_of(context)
            if known and not known_here:
                break
            with_this, longest = min(known, known_here), max(longest, len(context))
            num_rows = len(together) + 1
            read, held = num_rows * (longest - with_this), num_rows * longest
            if together and (read > self._tokens_per_pass or held > STEM_COPIES_MAX * self._tokens_per_pass):
                break
            known = with_this
            together.append(context)
        return self._read_whole(tuple(together), known=known)

    def read_alike(self, contexts: Sequence[Context]) -> Iterator[ReadContexts]:
        """Prefill all contexts, grouped by length: without padding, so that tokens can be appended."""
        by_length: dict[int, list[Context]] = {}
        for context in contexts:
            by_length.setdefault(len(context), []).append(context)
        for alike in by_length.values():
            start = 0
            while start < len(alike):
                read = self.read_next(alike[start:])
                if read is not None:
                    start += len(read.contexts)
                    yield read

    def forget(self) -> None:
        """Drop the stem and the partly prefilled context, after a change of parameters."""
        self._partly = self._stem = None

    def _known_of(self, context: Context) -> int:
        """Tokens of a context that the stem covers; all but its last one at most, 0 where copying does not pay."""
        if self._stem is None:
            return 0
        shared = min(num_shared(context, self._stem[0]), len(context) - 1)
        return shared if shared >= STEM_TOKENS_MIN else 0

    def _read_stem(self, stem: Context) -> None:
        _, cache = self._model(torch.tensor([stem], device=self._model.device))
        self._stem = (stem, cache)

    def _beginning(self, known: int, *, num_rows: int) -> KvCache | None:
        """The stem's cache for each row, ``known`` tokens."""
        if not known:
            return None
        assert self._stem is not None, "known tokens come from a stem"
        return beginning_of(self._stem[1], num_tokens=known, num_rows=num_rows)

    def _read_whole(self, contexts: tuple[Context, ...], *, known: int) -> ReadContexts:
        """``known``: tokens of each context that the stem covers."""
        tokens_GP, lengths_G = padded([context[known:] for context in contexts], device=self._model.device)
        stem = self._beginning(known, num_rows=len(contexts))
        hidden_GPD, cache = self._model(tokens_GP, cache=stem, lengths_B=lengths_G)
        hidden_GD = hidden_GPD[torch.arange(len(contexts), device=tokens_GP.device), lengths_G - 1]
        return ReadContexts(contexts, cache, hidden_GD)

    def _read_part(self, context: Context) -> ReadContexts | None:
        past = (
            self._beginning(self._known_of(context), num_rows=1) if self._partly is None else self._partly[1]
        )
        start = 0 if past is None else past.keys[0].shape[2]
        stop = min(start + self._tokens_per_pass, len(context))
        tokens_1T = torch.tensor([context[start:stop]], device=self._model.device)
        hidden_1TD, cache = self._model(tokens_1T, cache=past)
        if stop < len(context):
            self._partly = (context, cache)
            return None
        self._partly = None
        return ReadContexts((context,), cache, hidden_1TD[:, -1])


def num_shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix of two texts."""
    return next(
        (place for place, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )


def beginning_of(cache: KvCache, *, num_tokens: int, num_rows: int) -> KvCache:
    """The first tokens of a cache's single text, repeated for ``num_rows`` rows."""
    return KvCache(
        keys=tuple(layer[:, :, :num_tokens].expand(num_rows, -1, -1, -1) for layer in cache.keys),
        values=tuple(layer[:, :, :num_tokens].expand(num_rows, -1, -1, -1) for layer in cache.values),
        lengths_B=torch.full((num_rows,), num_tokens, device=cache.lengths_B.device),
        valid_BS=None,
    )


def padded(rows: Sequence[ArrayLike], *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token lists as one (rows, longest) tensor with ``PAD`` on the right, and their lengths; some may be empty."""
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    lengths = [len(array) for array in arrays]
    tokens = np.full((len(arrays), max(lengths)), PAD, dtype=np.int64)
    for into, array in zip(tokens, arrays, strict=True):
        into[: len(array)] = array
    return torch.tensor(tokens, device=device), torch.tensor(lengths, device=device)
