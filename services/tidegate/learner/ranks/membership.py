"""Which of several ranks this process is, as ``torchrun`` says it in the environment."""

from collections.abc import Mapping

import msgspec

from tidegate.core.errors import ConfigError

POD_NAME_VARIABLE = "TIDEGATE_POD_NAME"


class Membership(msgspec.Struct, frozen=True):
    """``rank`` of ``count`` in all; ``local_rank`` of those on this machine or in this pod, which picks its device."""

    rank: int
    count: int
    local_rank: int


def membership(environ: Mapping[str, str]) -> Membership | None:
    """Who this process is; None when it trains alone.

    Raises:
        ConfigError: the variables contradict each other, or rank 0 came to a pod that is not the first.
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
            "WORLD_SIZE says that several ranks train, and the rest of the environment does not say which one this is",
            why=f"{type(error).__name__}: {error}",
            fix="start the ranks with torchrun, or unset WORLD_SIZE to train alone",
        ) from error
    if not 0 <= found.rank < count:
        raise ConfigError(
            f"RANK {found.rank} is none of WORLD_SIZE {count}", fix="start the ranks with torchrun"
        )
    _check_pod(found, environ.get(POD_NAME_VARIABLE, ""))
    return found


def _check_pod(found: Membership, pod: str) -> None:
    """Rank 0 anywhere but in pod 0 would find no checkpoint on that pod's disk and train from nothing."""
    ordinal = pod.rpartition("-")[2]
    if ordinal.isdigit() and (found.rank == 0) != (int(ordinal) == 0 and found.local_rank == 0):
        raise ConfigError(
            f"Rank {found.rank} is in pod {pod}",
            why="the rendezvous numbers pods by their names, and the checkpoints are on the disk of the first",
            fix="let torchrun take the pod's own host name (leave --local-addr out), one agent a pod",
        )
