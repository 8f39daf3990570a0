"""Whether ranks that must be the same are: their run files when they meet, their parameters now and then."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from tidegate.learner.ranks.group import RankGroup, RankMismatchError

# Of every update that changes each bit of every parameter, one in so many is compared: a rank that went its own way
# is found long before the next checkpoint but one, at a cost that does not show.
CHECK_EVERY_UPDATES = 20
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_same_settings(group: RankGroup, *parts: bytes) -> None:
    """Compare what the ranks were told to do.

    Raises:
        RankMismatchError: a rank has another run file, model or version of this program.
        RankLostError: a rank is gone.
    """
    digest = hashlib.blake2b(b"\0".join(parts), digest_size=7).digest()
    if _differing(group, torch.tensor([int.from_bytes(digest)])):
        raise RankMismatchError(
            f"Rank {group.rank} of {group.count} was given another run file or model than its fellows",
            why="ranks must train the same policy by the same rules, and one of them started with other settings",
            fix="wait until all ranks were started anew with the same run file, model folder and version",
        )


def check_same_state(group: RankGroup, tensors: Mapping[str, Tensor], *, number: int) -> None:
    """Compare all that update ``number`` left behind, bit for bit, by one checksum a tensor.

    Raises:
        RankMismatchError: a tensor differs; the message names the first.
        RankLostError: a rank is gone.
    """
    differing = _differing(group, torch.stack([_checksum(tensor) for tensor in tensors.values()]).cpu())
    if differing:
        names = list(tensors)
        raise RankMismatchError(
            f"After update {number} rank {group.rank} of {group.count} and its fellows hold different parameters",
            why=f"{len(differing)} of {len(names)} tensors differ, {names[differing[0]]!r} the first; ranks that"
            " compute on unlike processors or versions of torch round unlike each other",
            fix="run all ranks on the same kind of machine and image; they go on from the newest checkpoint",
        )


def _differing(group: RankGroup, values: Tensor) -> list[int]:
    """Positions at which not all ranks have the same value."""
    largest, least_negated = group.largest(torch.cat([values, -values])).chunk(2)
    return [int(index) for index in (largest != -least_negated).nonzero()[:, 0]]


def _checksum(tensor: Tensor) -> Tensor:
    """The sum of its bits, read as integers."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(_INTEGER_OF_SIZE[flat.element_size()]).sum(dtype=torch.int64)
