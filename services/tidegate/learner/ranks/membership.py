"""This process' rank, from its environment: set by ``tidegate serve`` on one machine, by the chart in a pod."""

from collections.abc import Mapping

import msgspec

from tidegate.core.errors import ConfigError

POD_NAME_VARIABLE = "TIDEGATE_POD_NAME"
# The file in which ranks of one machine meet; without it they meet at MASTER_ADDR and MASTER_PORT,
# in a store that rank 0 offers there. Neither unpickles anything.
STORE_VARIABLE = "TIDEGATE_RANKS_STORE"


class Membership(msgspec.Struct, frozen=True):
    """``rank`` of ``count`` in all; ``local_rank`` on this machine or in this pod selects its device.

    ``store``: the file in which the ranks meet; empty for an address.
    """

    rank: int
    count: int
    local_rank: int
    store: str = ""


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
            rank=int(environ["RANK"]) if "RANK" in environ else _ordinal(environ[POD_NAME_VARIABLE]),
            count=count,
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            store=environ.get(STORE_VARIABLE, ""),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            "WORLD_SIZE is set for several ranks, and the environment does not define this process' rank",
            why=f"{type(error).__name__}: {error}",
            fix="set RANK as torchrun does, or unset WORLD_SIZE to train alone",
        ) from error
    if not 0 <= found.rank < count:
        raise ConfigError(
            f"RANK {found.rank} is outside of WORLD_SIZE {count}", fix="number the ranks from 0"
        )
    _check_pod(found, environ.get(POD_NAME_VARIABLE, ""))
    return found


def _ordinal(pod: str) -> int:
    """The number of a pod of a StatefulSet."""
    return int(pod.rpartition("-")[2])


def _check_pod(found: Membership, pod: str) -> None:
    """Reject rank 0 outside pod 0: it would find no checkpoint on its disk and train from scratch."""
    ordinal = pod.rpartition("-")[2]
    if ordinal.isdigit() and (found.rank == 0) != (int(ordinal) == 0 and found.local_rank == 0):
        raise ConfigError(
            f"Rank {found.rank} is in pod {pod}",
            why="ranks are numbered like their pods, and the checkpoints are on the disk of the first",
            fix="leave RANK out: the pod's name numbers it",
        )
