"""The interface of a causal language model for generation and training, independent of the library of its layers.

One forward pass serves both: it runs tokens behind a cache of keys and values, and returns the extended cache. A prompt
is computed once and its cache shared by all of its completions, in generation and (differentiably) in training.
``char_lm`` is trained from scratch, ``transformers_lm`` wraps a pretrained folder.

Shapes: B rows, T tokens of this pass, S tokens in the cache, D width, H key-value heads, V vocabulary.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tidegate.core.records import Array


@dataclass(frozen=True, slots=True)
class KvCache:
    """Keys and values of the tokens read so far.

    ``keys`` and ``values``: one (B, H, S, D/H) tensor a layer. ``lengths_B``: tokens of each row without padding, and
    so the position of the next one. ``valid_BS``: False on padding; None without padding.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    lengths_B: Tensor
    valid_BS: Tensor | None

    def rows(self, index_B: Tensor) -> "KvCache":
        """The cache of these rows, which may repeat (a prompt's samples) or be fewer (the unfinished ones)."""
        return KvCache(
            keys=tuple(layer.index_select(0, index_B) for layer in self.keys),
            values=tuple(layer.index_select(0, index_B) for layer in self.values),
            lengths_B=self.lengths_B.index_select(0, index_B),
            valid_BS=None if self.valid_BS is None else self.valid_BS.index_select(0, index_B),
        )


class AttentionContext(Protocol):
    """Attention of one forward pass: positions and mask of its tokens, and the cache of keys and values behind it.

    The model calls ``extend`` once a layer, in any order, and knows nothing of the cache:
    ``attention_context.KvAttentionContext`` makes new tensors and is differentiable,
    ``slot_cache.SlotAttentionContext`` writes into slots in place.
    """

    @property
    def positions(self) -> Tensor:
        """Each token's position (B, T) in its text, below the context's length."""
        ...

    @property
    def mask(self) -> Tensor | None:
        """True where a query may see a key: (T, S) or (B, 1, T, S).

        None: a single token that sees all keys, or tokens at the start of their texts with causal attention.
        """
        ...

    @property
    def num_keys(self) -> int:
        """S: keys that ``extend`` returns."""
        ...

    def extend(self, layer: int, keys_BHTD: Tensor, values_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Add this pass's keys and values; returns all that the layer's queries attend to, (B, H, S, D/H).

        They may be views of a cache with any strides but the last; the model must not change them.
        """
        ...


class CausalLm(Protocol):
    """A language model whose parameters may be replaced between two passes.

    Its one forward pass is ``read``; calling the model is ``read`` behind a ``KvCache``.
    """

    @property
    def context_length(self) -> int:
        """Tokens of prompt and completion together."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of tokens and hidden states."""
        ...

    @property
    def has_value_head(self) -> bool:
        """Whether the model has a critic."""
        ...

    def __call__(
        self, tokens_BT: Tensor, *, cache: KvCache | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, KvCache]:
        """Run tokens behind ``cache``; the last hidden state (B, T, D), normalised, and the extended cache.

        ``lengths_B``: the number of tokens in each row without its right padding; None without padding.

        Raises:
            RecordError: a row is longer than the context.
        """
        ...

    def read(self, tokens_BT: Tensor, attention: AttentionContext) -> Tensor:
        """Run the model on tokens behind ``attention``; the last hidden state (B, T, D), normalised."""
        ...

    def next_logprobs(self, hidden: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Logprobs (..., V) in float32 of the token after each position of ``hidden``, at a temperature above 0.

        A tensor of temperatures (..., 1) gives each position its own.
        """
        ...

    def state_values(self, hidden: Tensor) -> Tensor:
        """The critic's estimate (...) in float32 of the return from each position of ``hidden`` (..., D).

        Only for a model with a value head.
        """
        ...

    def trainable(self) -> dict[str, Tensor]:
        """The trained parameters by published name: all, or the adapters alone.

        They include the critic's: engines have one as well, which is cheaper than a second set of names.
        """
        ...

    def to_arrays(self) -> dict[str, Array]:
        """A copy of ``trainable`` as published."""
        ...

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Check that ``arrays`` fit ``trainable``.

        Raises:
            RecordError: a name is missing or unknown, or a shape or dtype differs; the message names the first.
        """
        ...

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Copy published parameters into the model, in place; all of them or none.

        Raises:
            RecordError: they do not fit; the model is unchanged.
        """
        ...

    def as_reference(self) -> AbstractContextManager[None] | None:
        """A context in which the model is its own reference; None where that needs a second model.

        It disables the adapters; a model without adapters has none to disable.
        """
        ...
