"""A version of a policy as commands take it: ``newest``, ``best``, or as ``lineage@step``."""

from pathlib import Path

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.ids import PolicyVersion, parse_version
from tidegate.runtime.best_version import read_best

NEWEST = "newest"
BEST = "best"
WEIGHT_DISTRIBUTION = Path("weight_distribution")


def version_of(text: str, *, option: str = "--version") -> PolicyVersion | None:
    """The version that ``option`` names; None is the newest.

    Raises:
        ConfigError: it is no version.
    """
    if text == NEWEST:
        return None
    try:
        return parse_version(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text} is no version", why=str(error)) from error


def best_version_of(folder: Path) -> PolicyVersion:
    """The version of a run with the best evaluation, or without evaluations the best training.

    Raises:
        NotFoundError: the run has none yet.
    """
    best = read_best(folder / WEIGHT_DISTRIBUTION)
    if best is None:
        raise NotFoundError(
            f"{folder} has no best version yet",
            why="no version was evaluated, and the learner reported no mean return or reward",
            fix="wait, set task_queue.evaluation_every_versions, or name a version",
        )
    return parse_version(best.version)
