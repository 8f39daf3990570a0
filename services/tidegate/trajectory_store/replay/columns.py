"""The tensors of all pages: one memory-mapped ring a tensor, whose entry ``slot`` is that tensor of one page.

A page that is written again overwrites the one evicted before it. Rings have their full size on disk from the start, so
that a full disk is an error of the first segment and not a signal in the middle of a write.

Shapes: P slots, N environments, R rows of each, B rows of one call.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray
from xxhash import xxh3_128

from tidegate.core.records import Array
from tidegate.trajectory_store.replay.page_layout import PageLayout


class Ring:
    """One memory-mapped file as an array with an entry for each slot."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        """Open the file or create it, all zeros.

        Raises:
            OSError: the disk has no space for it.
        """
        wanted = np.dtype(dtype)
        size = max(1, int(np.prod(shape, dtype=np.int64)) * wanted.itemsize)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, 0)
                os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.values: Array = np.ndarray(shape, wanted, self._map)
        self.num_bytes = size

    def flush(self) -> None:
        """Write what changed to the disk."""
        self._map.flush()


class Columns:
    """Every tensor of ``page_layout`` for ``num_slots`` pages."""

    def __init__(self, folder: Path, layout: PageLayout, *, num_slots: int) -> None:
        """Open the rings in ``folder``, or create them.

        Raises:
            OSError: the disk has no space for them.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._layout = layout
        self._rings = {
            tensor.name: Ring(
                folder / f"{index:03d}.ring",
                (num_slots, layout.num_envs, tensor.num_rows, *tensor.shape),
                tensor.dtype,
            )
            for index, tensor in enumerate(layout.tensors)
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of all rings."""
        return sum(ring.num_bytes for ring in self._rings.values())

    def write(self, slot: int, tensors: Mapping[str, Array]) -> None:
        """Write one page's tensors (R, N, ...), which were checked against the layout."""
        for name, ring in self._rings.items():
            ring.values[slot] = tensors[name].swapaxes(0, 1)

    def page(self, name: str, slot: int) -> Array:
        """One page's tensor (N, R, ...), without a copy."""
        return self._rings[name].values[slot]

    def rows(
        self,
        name: str,
        slots_B: NDArray[np.int64],
        envs_B: NDArray[np.int64],
        rows_B: NDArray[np.int64],
    ) -> Array:
        """Copies of single rows; the three indexes may have any shape they share."""
        return self._rings[name].values[slots_B, envs_B, rows_B]

    def digest(self, slot: int) -> bytes:
        """The digest of a page's tensors."""
        hasher = xxh3_128()
        for ring in self._rings.values():
            hasher.update(ring.values[slot].data)
        return hasher.digest()

    def flush(self) -> None:
        """Make every page durable against a power cut."""
        for ring in self._rings.values():
            ring.flush()
