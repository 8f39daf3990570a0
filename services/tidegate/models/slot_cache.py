"""Keys and values of the live rows, in slots that are allocated once and written in place.

The live rows are always the first slots, so a pass uses views and computes no finished row: the last row replaces a
finished one. Each row has its own position; attention runs over the longest row's length.

Shapes: N slots, R live rows, H key-value heads, S tokens of capacity per slot, D width of all heads.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tidegate.core.errors import ConfigError
from tidegate.models.causal_lm import KvCache

# Initial tokens per slot; capacity doubles, so all copies together cost less than the last one.
CAPACITY_MIN = 32


class SlotCache:
    """The cache of a batch with changing rows.

    Bounded: ``slots`` rows, and ``bytes_max`` of keys and values; while it grows, one layer exists twice. ``drop``
    frees a slot. Allocated memory is kept for the next rows.
    """

    def __init__(self, like: KvCache, *, slots: int, context_length: int, bytes_max: int) -> None:
        """Nothing is allocated before the first row. ``like``: any cache of the model, for its layers' shapes.

        Raises:
            ConfigError: one text of the model's context length does not fit into ``bytes_max``.
        """
        self._keys = [layer.new_zeros((0, layer.shape[1], 0, layer.shape[3])) for layer in like.keys]
        self._values = [layer.new_zeros((0, layer.shape[1], 0, layer.shape[3])) for layer in like.values]
        self.bytes_per_token = sum(
            layer.shape[1] * layer.shape[3] * layer.element_size() for layer in (*like.keys, *like.values)
        )
        self._slots = slots
        self._context_length = context_length
        self._tokens_max = min(bytes_max // self.bytes_per_token, slots * context_length)
        if self._tokens_max < context_length:
            raise ConfigError(
                f"A cache of {bytes_max} bytes holds {self._tokens_max} tokens of this model",
                why=f"one text may have {context_length}, of {self.bytes_per_token} bytes each",
                fix="lower policy.context_length, or raise the cache's size",
            )
        self._lengths_N = np.zeros(slots, dtype=np.int64)
        self._device = like.keys[0].device
        self._places = torch.arange(context_length, device=self._device)
        self._slot_indices = torch.arange(slots, device=self._device)
        self.num_rows = 0

    @property
    def lengths(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Cached tokens of each live row (R,): the position of the next one."""
        return self._lengths_N[: self.num_rows]

    @property
    def bytes_max(self) -> int:
        """The most bytes of keys and values."""
        return self._tokens_max * self.bytes_per_token

    @property
    def num_bytes(self) -> int:
        """The allocated bytes."""
        return sum(layer.nbytes for layer in (*self._keys, *self._values))

    def has_room(self, num_rows: int, *, longest: int) -> bool:
        """Whether ``num_rows`` rows fit when the longest of them has ``longest`` tokens."""
        return num_rows <= self._slots and num_rows * self._capacity_for(longest) <= self._tokens_max

    def append(self, cache: KvCache, index: Sequence[int], *, lengths: Sequence[int]) -> None:
        """Copy rows ``index`` of a cache (which may repeat), ``lengths`` tokens of each, into the next slots."""
        start, stop = self.num_rows, self.num_rows + len(index)
        self.num_rows = stop
        self._lengths_N[start:stop] = lengths
        self._write(cache, slice(start, stop), index, longest=max(lengths))

    def replace(self, slots: Sequence[int], cache: KvCache) -> None:
        """Replace the keys and values of live slots by a cache's rows, recomputed for the same tokens."""
        longest = int(self._lengths_N[list(slots)].max())
        self._write(cache, torch.tensor(slots, device=self._device), range(len(slots)), longest=longest)

    def drop(self, slots: Sequence[int]) -> list[tuple[int, int]]:
        """Free live slots; returns (source, target) of the moved rows, for other state by slot."""
        remaining = self.num_rows - len(slots)
        gone = set(slots)
        targets = [slot for slot in slots if slot < remaining]
        sources = [slot for slot in range(remaining, self.num_rows) if slot not in gone]
        if targets:
            longest = int(self._lengths_N[sources].max())
            self._lengths_N[targets] = self._lengths_N[sources]
            source_M = torch.tensor(sources, device=self._device)
            target_M = torch.tensor(targets, device=self._device)
            for layer in (*self._keys, *self._values):
                layer[target_M, :, :longest] = layer[source_M, :, :longest]
        self.num_rows = remaining
        return list(zip(sources, targets, strict=True))

    def begin(self) -> "SlotAttentionContext":
        """Start a pass over one more token of each live row."""
        lengths_R = self.lengths
        longest = int(lengths_R.max())
        self._grow(longest + 1)
        # The copy is needed: the lengths below change during the pass.
        positions_R = torch.tensor(lengths_R, device=self._device)
        mask = None
        if int(lengths_R.min()) < longest:
            mask = (self._places[: longest + 1] <= positions_R[:, None])[:, None, None]
        lengths_R += 1
        return SlotAttentionContext(
            self._keys,
            self._values,
            positions_R=positions_R,
            slots_R=self._slot_indices[: self.num_rows],
            num_keys=longest + 1,
            mask=mask,
        )

    def _write(self, cache: KvCache, slots: Tensor | slice, index: Sequence[int], *, longest: int) -> None:
        """Copy rows of a cache into slots; beyond a row's length is padding, masked until it is overwritten."""
        self._grow(longest)
        rows = torch.tensor(index, device=self._device)
        width = min(longest, cache.keys[0].shape[2])
        for layer, (keys, values) in enumerate(zip(cache.keys, cache.values, strict=True)):
            self._keys[layer][slots, :, :width] = keys[:, :, :width].index_select(0, rows)
            self._values[layer][slots, :, :width] = values[:, :, :width].index_select(0, rows)

    def _capacity_for(self, num_tokens: int) -> int:
        capacity = CAPACITY_MIN
        while capacity < num_tokens:
            capacity *= 2
        return min(capacity, self._context_length)

    def _grow(self, num_tokens: int) -> None:
        """Grow or shrink to texts of ``num_tokens``, with as many slots as the bound allows.

        Near the bound, many short rows after few long ones shrink the capacity per slot.
        """
        num_slots, _, capacity, _ = self._keys[0].shape
        longest = max(num_tokens, int(self.lengths.max()))
        if longest <= capacity and self.num_rows <= num_slots:
            return
        capacity = self._capacity_for(longest)
        num_slots = min(self._slots, self._tokens_max // capacity)
        assert self.num_rows <= num_slots, "call has_room before appending rows"
        for layers in (self._keys, self._values):
            for position, layer in enumerate(layers):
                # Zeros, not uninitialised memory: masked keys have weight 0, and 0 times NaN is NaN.
                grown = layer.new_zeros((num_slots, layer.shape[1], capacity, layer.shape[3]))
                kept, width = min(num_slots, layer.shape[0]), min(capacity, layer.shape[2])
                grown[:kept, :, :width] = layer[:kept, :, :width]
                layers[position] = grown


class SlotAttentionContext:
    """An ``AttentionContext`` of one token per live row; keys and values are written into slots and used as views."""

    def __init__(
        self,
        keys: list[Tensor],
        values: list[Tensor],
        *,
        positions_R: Tensor,
        slots_R: Tensor,
        num_keys: int,
        mask: Tensor | None,
    ) -> None:
        """``mask``: (R, 1, 1, S), or None when all rows are equally long."""
        self._keys = keys
        self._values = values
        self._positions_R = positions_R
        self._slots_R = slots_R
        self.positions = positions_R[:, None]
        self.num_keys = num_keys
        self.mask = mask

    def extend(self, layer: int, keys_BHTD: Tensor, values_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Write each row's token at its own position; returns all keys and values."""
        return (
            self._written(self._keys[layer], keys_BHTD),
            self._written(self._values[layer], values_BHTD),
        )

    def _written(self, slots: Tensor, fresh: Tensor) -> Tensor:
        num_rows = fresh.shape[0]
        if self.mask is None:
            slots[:num_rows, :, self.num_keys - 1] = fresh[:, :, 0]
        else:
            slots[self._slots_R, :, self._positions_R] = fresh[:, :, 0]
        return slots[:num_rows, :, : self.num_keys]
