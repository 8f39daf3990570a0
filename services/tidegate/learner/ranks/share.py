"""Who computes which rows. Only what a network costs is divided; what looks at a whole batch sees the whole batch.

Shapes: B rows, G groups of rows.
"""

import torch
from torch import Tensor


def share_of_rows(num_rows: int, *, rank: int, count: int) -> slice:
    """The rows of one rank: neighbours, as many as the others' or one more; none where there are fewer rows."""
    return slice(num_rows * rank // count, num_rows * (rank + 1) // count)


def share_of_groups(group_index_B: Tensor, *, rank: int, count: int) -> Tensor:
    """Positions of one rank's rows, of whole groups: a prompt is computed once for all of its completions.

    Groups are numbered from 0 without gaps. With fewer groups than ranks some ranks have none: they wait for the
    others, and the result is the same.
    """
    num_groups = int(group_index_B.max()) + 1
    mine = share_of_rows(num_groups, rank=rank, count=count)
    return ((group_index_B >= mine.start) & (group_index_B < mine.stop)).nonzero()[:, 0]


def rows_of(share: slice, *, device: torch.device) -> Tensor:
    """The positions that a slice of rows names."""
    return torch.arange(share.start, share.stop, device=device)
