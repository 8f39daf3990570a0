"""This process' rank, from its environment: set by ``tidegate serve`` on one machine and, with the chart, in a pod."""

from collections.abc import Mapping

import msgspec

from tidegate.core.errors import ConfigError

POD_NAME_VARIABLE = "TIDEGATE_POD_NAME"
# The file in which ranks of one machine meet; without it they meet at MASTER_ADDR and MASTER_PORT,
# in a store that rank 0 offers there. Neither unpickles anything.
STORE_VARIABLE = "TIDEGATE_RANKS_STORE"
# Ranks of one pod, which the chart sets to its number of GPUs.
RANKS_IN_POD_VARIABLE = "TIDEGATE_RANKS_IN_POD"
# The number of a pod of an indexed Job, which Kubernetes sets; the name of a pod of a StatefulSet ends in its number.
JOB_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


class PodRanks(msgspec.Struct, frozen=True):
    """The ranks that one pod starts: ``in_pod`` of ``count`` in all, numbered from ``first``."""

    first: int
    in_pod: int
    count: int


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
            rank=int(environ["RANK"]) if "RANK" in environ else pod_ordinal(environ),
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
    _check_pod(found, environ)
    return found


def pod_ranks(environ: Mapping[str, str]) -> PodRanks | None:
    """The ranks that this pod's process starts; None for a pod of one rank, which is the process itself.

    Raises:
        ConfigError: the variables contradict each other, or the pod has no number.
    """
    try:
        in_pod = int(environ.get(RANKS_IN_POD_VARIABLE, "1"))
        if in_pod == 1:
            return None
        count = int(environ.get("WORLD_SIZE", in_pod))
        first = pod_ordinal(environ) * in_pod if count > in_pod else 0
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{RANKS_IN_POD_VARIABLE} is set, and the environment does not define the pod's ranks",
            why=f"{type(error).__name__}: {error}",
            fix="let the chart set it: learner.gpu is the number of ranks in a pod",
        ) from error
    if in_pod < 1 or count % in_pod or first >= count:
        raise ConfigError(
            f"A pod of {in_pod} ranks that begins at rank {first} does not fit {count} ranks in all",
            fix="set learner.ranks of the chart to a multiple of learner.gpu",
        )
    return PodRanks(first=first, in_pod=in_pod, count=count)


def pod_ordinal(environ: Mapping[str, str]) -> int:
    """The number of this pod of a StatefulSet or an indexed Job.

    Raises:
        KeyError, ValueError: it has none.
    """
    return int(environ.get(JOB_INDEX_VARIABLE) or environ[POD_NAME_VARIABLE].rpartition("-")[2])


def _check_pod(found: Membership, environ: Mapping[str, str]) -> None:
    """Reject rank 0 outside pod 0: it would find no checkpoint on its disk and train from scratch.

    Not where all ranks are in one pod, of which others may stand by.
    """
    if found.store:
        return
    pod = environ.get(POD_NAME_VARIABLE, "")
    ordinal = environ.get(JOB_INDEX_VARIABLE) or pod.rpartition("-")[2]
    if ordinal.isdigit() and (found.rank == 0) != (int(ordinal) == 0 and found.local_rank == 0):
        raise ConfigError(
            f"Rank {found.rank} is in pod {pod}",
            why="ranks are numbered like their pods, and the checkpoints are on the disk of the first",
            fix="leave RANK out: the pod's name numbers it",
        )
