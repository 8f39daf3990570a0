"""How far the learner's log-probability of a completion's tokens is from the one that they were sampled with.

The mean of it is ``mismatch_kl``; by token it shows where: a tokenizer that joins pieces otherwise, a position that is
off by one, an end token, an engine whose arithmetic differs. Measured where the learner still has the version that its
update starts from, in the first gradient step, and kept of the completions that are furthest off.

Shapes: B completions, T their tokens.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor

from tidegate.core.records import Array
from tidegate.learner.optim.port import Trainer


class TokenGaps(msgspec.Struct, frozen=True, eq=False):
    """Of one trajectory, at position ``sample`` of the batch.

    ``gaps_T``: log π(token) of the version that the update starts from, less that of the one that chose it, in nats,
    float16; NaN where the policy chose no token.
    """

    sample: int
    gaps_T: Array


@runtime_checkable
class TokenTrainer(Trainer, Protocol):
    """A ``Trainer`` of completions."""

    def token_gaps(self) -> list[TokenGaps]:
        """Of the newest update, the completions with the largest gaps, those first."""
        ...


def token_gaps_of(trainer: Trainer) -> list[TokenGaps]:
    """``TokenTrainer.token_gaps`` of a trainer that has them, else none."""
    return trainer.token_gaps() if isinstance(trainer, TokenTrainer) else []


class LargestGaps:
    """Collects the ``count`` completions of an update whose largest gap is largest."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._found: list[tuple[float, TokenGaps]] = []

    def add(self, log_ratios_BT: Tensor, mask_BT: Tensor, samples_B: Tensor) -> None:
        """Count rows of a minibatch, which are at the positions ``samples_B`` of the batch; constant tensors."""
        if not self._count or not len(samples_B):
            return
        largest_B = torch.where(mask_BT, log_ratios_BT, 0.0).abs().amax(dim=1)
        top = largest_B.topk(min(self._count, len(largest_B)))
        rows_K = top.indices
        gaps_KT = torch.where(mask_BT, log_ratios_BT, torch.nan)[rows_K].to(torch.float16).cpu().numpy()
        ends_K = (_last_of(mask_BT[rows_K]) + 1).cpu().numpy()
        largest_K, samples_K = top.values.cpu().numpy(), samples_B[rows_K].cpu().numpy()
        for row, gaps_T in enumerate(gaps_KT):
            gaps = TokenGaps(int(samples_K[row]), gaps_T[: ends_K[row]])
            self._found.append((float(largest_K[row]), gaps))
        self._found.sort(key=lambda each: -each[0])
        del self._found[self._count :]

    def found(self) -> list[TokenGaps]:
        """The largest first."""
        return [gaps for _, gaps in self._found]


def _last_of(mask_BT: Tensor) -> Tensor:
    """The position of the last True of each row; -1 without one."""
    positions_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    return torch.where(mask_BT, positions_T, -1).amax(dim=1)


def shifted(gaps: Sequence[TokenGaps], *, by: int) -> list[TokenGaps]:
    """The gaps of a part of a batch that begins at the position ``by``, as those of the batch."""
    return [TokenGaps(each.sample + by, each.gaps_T) for each in gaps]
