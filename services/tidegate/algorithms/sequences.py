"""Rows as sequences for a recurrent policy: each ends where its episode does, so that none is reset.

The row after an episode's end is no step, but its observation bootstraps a truncated episode: it is the last row of its
sequence, and the next one begins after it with an empty state. A column's first sequence continues from the recorded
state. A loop over steps with resets inside would cost several times as much as one fused call over such sequences.

Shapes: T steps, N environments, S = T + 1 rows, Q sequences, R rows of all of them, L the length of the longest.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PackedSequences:
    """The rows of sequences in the order of torch's packed sequences.

    ``rows_R``: positions in the flattened (S, N) of the first rows of all sequences, the longest first, then of the
    second rows and so on; every row once. ``batch_sizes_L``: sequences that have a row at each place. ``columns_Q``: of
    which environment each is. ``continues_Q``: whether it begins with the segment, from the recorded state.
    """

    rows_R: NDArray[np.int64]
    batch_sizes_L: NDArray[np.int64]
    columns_Q: NDArray[np.int64]
    continues_Q: NDArray[np.bool_]


def pack_sequences(valid_TN: NDArray[np.bool_]) -> PackedSequences:
    """The sequences of a segment's columns.

    ``valid_TN``: False on rows that are no steps; a sequence ends with such a row.
    """
    num_steps, num_envs = valid_TN.shape
    num_rows = num_steps + 1
    begins_NS = np.ones((num_envs, num_rows), np.bool_)
    begins_NS[:, 1:] = ~valid_TN.T
    firsts_Q = np.flatnonzero(begins_NS)
    lengths_Q = np.diff(firsts_Q, append=num_envs * num_rows)
    order_Q = np.argsort(-lengths_Q, kind="stable")
    firsts_Q, lengths_Q = firsts_Q[order_Q], lengths_Q[order_Q]
    by_column_R, batch_sizes_L = pack_rows(firsts_Q, lengths_Q)
    return PackedSequences(
        rows_R=by_column_R % num_rows * num_envs + by_column_R // num_rows,
        batch_sizes_L=batch_sizes_L,
        columns_Q=firsts_Q // num_rows,
        continues_Q=firsts_Q % num_rows == 0,
    )


def pack_rows(
    firsts_Q: NDArray[np.int64], lengths_Q: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows (R,) of sequences in the order of torch's packed sequences, and the batch sizes (L,) at each place.

    ``firsts_Q``: the position of each sequence's first row; the others follow it. ``lengths_Q``: in rows, the longest
    first.
    """
    num_longest = int(lengths_Q.max(initial=0))
    batch_sizes_L = (lengths_Q > np.arange(num_longest)[:, None]).sum(axis=1)
    places_R = np.repeat(np.arange(num_longest), batch_sizes_L)
    ranks_R = np.arange(len(places_R)) - np.repeat(np.cumsum(batch_sizes_L) - batch_sizes_L, batch_sizes_L)
    return firsts_Q[ranks_R] + places_R, batch_sizes_L
