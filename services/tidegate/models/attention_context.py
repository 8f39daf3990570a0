"""The attention context of a cache that grows by new tensors, for training and prefill.

Shapes: B rows, T tokens of this pass, S keys after it.
"""

import torch
from torch import Tensor

from tidegate.core.errors import RecordError
from tidegate.models.causal_lm import CausalLm, KvCache
from tidegate.models.visibility import visibility


class KvAttentionContext:
    """An ``AttentionContext`` over a ``KvCache``, or at the start of texts; differentiable, never in place."""

    def __init__(
        self, tokens_BT: Tensor, *, cache: KvCache | None, lengths_B: Tensor | None, context_length: int
    ) -> None:
        """``lengths_B``: the number of tokens in each row without its right padding; None without padding.

        Raises:
            RecordError: a row is longer than the context.
        """
        num_rows, num_tokens = tokens_BT.shape
        start_B = tokens_BT.new_zeros(num_rows) if cache is None else cache.lengths_B
        if lengths_B is None:
            lengths_B = torch.full_like(start_B, num_tokens)
        longest = int((start_B + lengths_B).max()) if num_rows else 0
        if longest > context_length:
            raise RecordError(
                f"A text of {longest} tokens is longer than the model's context of {context_length}",
                fix="raise policy.context_length, or lower sampler.max_new_tokens",
            )
        positions_BT = start_B[:, None] + torch.arange(num_tokens, device=tokens_BT.device)
        # Padding may lie past the last position; its outputs are never read.
        self.positions = positions_BT.clamp_max(context_length - 1)
        self.mask, self._valid_BS = visibility(cache, num_tokens=num_tokens, lengths_B=lengths_B)
        self.num_keys = num_tokens + (0 if cache is None else cache.keys[0].shape[2])
        self._past = cache
        self._lengths_B = start_B + lengths_B
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def extend(self, layer: int, keys_BHTD: Tensor, values_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's keys and values after those of the cache."""
        keys, values = keys_BHTD, values_BHTD
        if self._past is not None:
            keys = torch.cat([self._past.keys[layer], keys], dim=2)
            values = torch.cat([self._past.values[layer], values], dim=2)
        self._keys[layer], self._values[layer] = keys, values
        return keys, values

    def cache(self) -> KvCache:
        """The cache with this pass's tokens added, after all layers ran."""
        layers = sorted(self._keys)
        return KvCache(
            keys=tuple(self._keys[layer] for layer in layers),
            values=tuple(self._values[layer] for layer in layers),
            lengths_B=self._lengths_B,
            valid_BS=self._valid_BS,
        )


def read_behind(
    model: CausalLm, tokens_BT: Tensor, *, cache: KvCache | None, lengths_B: Tensor | None
) -> tuple[Tensor, KvCache]:
    """Implements a call of a model: ``read`` behind a cache; the last hidden state and the extended cache.

    Raises:
        RecordError: a row is longer than the context.
    """
    attention = KvAttentionContext(
        tokens_BT, cache=cache, lengths_B=lengths_B, context_length=model.context_length
    )
    hidden_BTD = model.read(tokens_BT, attention)
    return hidden_BTD, attention.cache()
