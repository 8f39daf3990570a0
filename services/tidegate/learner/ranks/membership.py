"""This process' rank, from the environment that ``torchrun`` sets."""

from collections.abc import Mapping

import msgspec

from tidegate.core.errors import ConfigError

POD_NAME_VARIABLE = "TIDEGATE_POD_NAME"


class Membership(msgspec.Struct, frozen=True):
    """``rank`` of ``count`` in all; ``local_rank`` on this machine or in this pod selects its device."""

    rank: int
    count: int
    local_rank: int


def membership(environ: Mapping[str, str]) -> Membership | None:
    """This process' membership; None when it trains alone.

    Raises:
        ConfigError: the variables contradict each other, or rank 0 is not in the first pod.
    """
    try:
        count = int(environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return None
        found = Membership(
            rank=int(environ["RANK"]), count=count, local_rank=int(environ.get("LOCAL_RANK", "0"))
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            "WORLD_SIZE is set for several ranks, and the environment does not define this process' rank",
            why=f"{type(error).__name__}: {error}",
            fix="start the ranks with torchrun, or unset WORLD_SIZE to train alone",
        ) from error
    if not 0 <= found.rank < count:
        raise ConfigError(
            f"RANK {found.rank} is outside of WORLD_SIZE {count}", fix="start the ranks with torchrun"
        )
    _check_pod(found, environ.get(POD_NAME_VARIABLE, ""))
    return found


def _check_pod(found: Membership, pod: str) -> None:
    """Reject rank 0 outside pod 0: it would find no checkpoint on its disk and train from scratch."""
    ordinal = pod.rpartition("-")[2]
    if ordinal.isdigit() and (found.rank == 0) != (int(ordinal) == 0 and found.local_rank == 0):
        raise ConfigError(
            f"Rank {found.rank} is in pod {pod}",
            why="the rendezvous numbers pods by their names, and the checkpoints are on the disk of the first",
            fix="let torchrun use the pod's host name (omit --local-addr), one agent per pod",
        )
