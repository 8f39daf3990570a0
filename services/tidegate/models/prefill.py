"""Reading contexts before the first token is written behind them, a bounded number of tokens a pass.

Shapes: G contexts, P tokens of the longest, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegate.models.causal_lm import CausalLm, KvCache

Context = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReadContexts:
    """Contexts that were read together: the cache of each, and the hidden state at its last token."""

    contexts: tuple[Context, ...]
    cache: KvCache
    hidden_GD: Tensor

    def alone(self, index: int) -> "ReadContexts":
        """One of them, which keeps nothing of the others alive."""
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
    """Reads what it is asked for pass by pass; a context longer than a pass is read in parts, alone.

    Holds the cache of at most one context that is partly read; the pass that ends it, or another order, frees it.
    """

    def __init__(self, model: CausalLm, *, tokens_per_pass: int) -> None:
        """``tokens_per_pass``: padding counts as well."""
        assert tokens_per_pass > 0, "a pass reads something"
        self._model = model
        self._tokens_per_pass = tokens_per_pass
        self._partly: tuple[Context, KvCache] | None = None

    def read_next(self, wanted: Sequence[Context]) -> ReadContexts | None:
        """One pass over the first of ``wanted`` (all different, none empty); None if the first is only partly read."""
        if self._partly is not None and self._partly[0] != wanted[0]:
            self.forget()
        if self._partly is not None or len(wanted[0]) > self._tokens_per_pass:
            return self._read_part(wanted[0])
        longest = 0
        count = 0
        for context in wanted:
            longest = max(longest, len(context))
            if (count + 1) * longest > self._tokens_per_pass:
                break
            count += 1
        return self._read_whole(tuple(wanted[:count]))

    def read_alike(self, contexts: Sequence[Context]) -> Iterator[ReadContexts]:
        """All of them, those of one length together: without padding, so that more may be read behind them."""
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
        """Whatever is partly read was read by other parameters, or is not wanted any more."""
        self._partly = None

    def _read_whole(self, contexts: tuple[Context, ...]) -> ReadContexts:
        tokens_GP, lengths_G = padded(contexts, device=self._model.device)
        hidden_GPD, cache = self._model(tokens_GP, lengths_B=lengths_G)
        hidden_GD = hidden_GPD[torch.arange(len(contexts), device=tokens_GP.device), lengths_G - 1]
        return ReadContexts(contexts, cache, hidden_GD)

    def _read_part(self, context: Context) -> ReadContexts | None:
        past = None if self._partly is None else self._partly[1]
        start = 0 if past is None else past.keys[0].shape[2]
        stop = min(start + self._tokens_per_pass, len(context))
        tokens_1T = torch.tensor([context[start:stop]], device=self._model.device)
        hidden_1TD, cache = self._model(tokens_1T, cache=past)
        if stop < len(context):
            self._partly = (context, cache)
            return None
        self._partly = None
        return ReadContexts((context,), cache, hidden_1TD[:, -1])


def padded(rows: Sequence[Sequence[int]], *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token lists as one (rows, longest) tensor, padded on the right with token 0, and their lengths."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    return (
        torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device),
        torch.tensor(lengths, device=device),
    )
