"""Statistics of evaluations: one actor makes each, so the newest version's count, and not the mean of all actors."""

from tidegate.catalogue import actor as actor_stats
from tidegate.wire.stats import ServiceStats

# Short names for statistics in a target.
ALIASES = {"solved_share": actor_stats.EVALUATION_SOLVED_SHARE}
EVALUATION = "evaluation_"
NOT_EVALUATED = (-1, -1)


def is_of_evaluation(name: str) -> bool:
    """Whether a statistic is a result of the newest evaluation, and not a counter of all of them."""
    return name.startswith(EVALUATION) and not name.endswith("_total")


def evaluated_version(stats: ServiceStats) -> tuple[int, int]:
    """The version that an instance evaluated last, in the order of ``version_order``."""
    return version_order(stats.labels.get(actor_stats.EVALUATION_VERSION, ""))


def version_order(text: str) -> tuple[int, int]:
    """A version's number of its lineage and its step, which order versions by time; any other text comes first."""
    lineage, _, step = text.rpartition("@")
    number = lineage.partition("-")[0]
    try:
        return int(number), int(step)
    except ValueError:  # as a report is a stranger's text: superscript digits, or five thousand of them
        return NOT_EVALUATED
