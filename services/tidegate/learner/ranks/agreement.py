"""Checks that ranks agree: on their run files when they join, on their parameters periodically."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from tidegate.learner.ranks.group import RankGroup, RankMismatchError

# One in this many updates is compared: a diverged rank is detected long before the second next checkpoint, at a
# negligible cost.
CHECK_EVERY_UPDATES = 20
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_same_settings(group: RankGroup, *parts: bytes) -> None:
    """Compare the ranks' settings.

    Raises:
        RankMismatchError: a rank has another run file, model or version of this program.
        RankLostError: a rank is lost.
    """
    digest = hashlib.blake2b(b"\0".join(parts), digest_size=7).digest()
    if _differing(group, torch.tensor([int.from_bytes(digest)])):
        raise RankMismatchError(
            f"Rank {group.rank} of {group.count} has another run file or model than the other ranks",
            why="all ranks must train the same policy with the same settings",
            fix="restart all ranks with the same run file, model folder and version",
        )


def check_same_state(group: RankGroup, tensors: Mapping[str, Tensor], *, number: int) -> None:
    """Compare the state after update ``number``, bit for bit, by one checksum per tensor.

    Raises:
        RankMismatchError: a tensor differs; the message names the first.
        RankLostError: a rank is lost.
    """
    # On the CPU one by one: a random state is there, parameters may be on a GPU, and both cannot be stacked.
    differing = _differing(group, torch.stack([_checksum(tensor).cpu() for tensor in tensors.values()]))
    if differing:
        names = list(tensors)
        raise RankMismatchError(
            f"After update {number} rank {group.rank} of {group.count} and the other ranks hold different parameters",
            why=f"{len(differing)} of {len(names)} tensors differ, {names[differing[0]]!r} the first; ranks on"
            " different processors or versions of torch round differently",
            fix="run all ranks on the same kind of machine and image; they resume from the newest checkpoint",
        )


def _differing(group: RankGroup, values: Tensor) -> list[int]:
    """Positions at which not all ranks have the same value."""
    largest, least_negated = group.largest(torch.cat([values, -values])).chunk(2)
    return [int(index) for index in (largest != -least_negated).nonzero()[:, 0]]


def _checksum(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits, read as integers."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64)
