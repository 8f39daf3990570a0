"""Divides rows between ranks. Only forward and backward passes are divided; the loss reads the whole batch.

Shapes: B rows, G groups of rows.
"""

import torch
from torch import Tensor


def share_of_rows(num_rows: int, *, rank: int, count: int) -> slice:
    """The rows of one rank: contiguous and balanced within one row; empty for ranks beyond the rows."""
    return slice(num_rows * rank // count, num_rows * (rank + 1) // count)


def share_of_groups(group_index_B: Tensor, *, rank: int, count: int) -> Tensor:
    """Positions of one rank's rows, of whole groups: a prompt is computed once for all of its completions.

    Groups are numbered from 0 without gaps. With fewer groups than ranks some ranks have none and wait; the result is
    the same.
    """
    num_groups = int(group_index_B.max()) + 1
    mine = share_of_rows(num_groups, rank=rank, count=count)
    return ((group_index_B >= mine.start) & (group_index_B < mine.stop)).nonzero()[:, 0]


def rows_of(share: slice, *, device: torch.device) -> Tensor:
    """The positions of a slice of rows."""
    return torch.arange(share.start, share.stop, device=device)
