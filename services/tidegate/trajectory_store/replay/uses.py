"""The units of an update as bytes, and how often each was used: pure functions."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_ID = np.dtype("<i8")
# Counts are kept as narrow as they fit: bytes for all but units that are used hundreds of times.
_NARROW, _WIDE = np.dtype("u1"), np.dtype("<u4")


def encode_units(ids_B: NDArray[np.int64]) -> bytes:
    """The ids of units, in the order of their batch; a unit that was drawn twice is named twice."""
    return ids_B.astype(_ID).tobytes()


def decode_units(data: bytes) -> NDArray[np.int64]:
    """What ``encode_units`` wrote."""
    return np.frombuffer(data, _ID).astype(np.int64)


def num_units(data: bytes) -> int:
    """How many ids ``encode_units`` wrote."""
    return len(data) // _ID.itemsize


def count_by_trajectory(updates: Iterable[NDArray[np.int64]], *, units: int) -> dict[int, NDArray[np.uint32]]:
    """How often each unit was used, by the place of its trajectory in the ledger; ``units``: of one trajectory."""
    used = list(updates)
    if not used:
        return {}
    ids, counts = np.unique(np.concatenate(used), return_counts=True)
    seqs, places = np.divmod(ids, units)
    firsts = np.flatnonzero(np.diff(seqs, prepend=-1))
    found: dict[int, NDArray[np.uint32]] = {}
    for first, last in zip(firsts.tolist(), [*firsts[1:].tolist(), len(seqs)], strict=True):
        of_units = np.zeros(units, np.uint32)
        of_units[places[first:last]] = counts[first:last]
        found[int(seqs[first])] = of_units
    return found


def encode_counts(counts_U: NDArray[np.uint32]) -> bytes:
    """The counts of a trajectory's units."""
    width = _NARROW if counts_U.max(initial=0) <= np.iinfo(_NARROW).max else _WIDE
    return counts_U.astype(width).tobytes()


def decode_counts(data: bytes, *, units: int) -> NDArray[np.uint32]:
    """What ``encode_counts`` wrote."""
    return np.frombuffer(data, _NARROW if len(data) == units else _WIDE).astype(np.uint32)
