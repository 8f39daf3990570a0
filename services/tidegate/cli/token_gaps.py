"""Reader of the learner's ``token_gaps.jsonl``: completions whose log-probabilities learner and actors disagree on."""

import math
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from tidegate.learner.token_gaps_log import TOKEN_GAPS_FILE, GapsLine, TrajectoryGaps
from tidegate.runtime.json_lines_file import newest_lines, whole_lines

FILE = Path("learner") / TOKEN_GAPS_FILE
# Updates that the list of the largest gaps looks at.
UPDATES_MAX = 500


class FoundGaps(msgspec.Struct, frozen=True):
    """Of one trajectory: ``version`` is the one that its update made, ``gaps`` has None where no token was chosen."""

    version: str
    largest: float
    gaps: list[float | None]


def gaps_of(folder: Path, trajectory_id: str) -> FoundGaps | None:
    """The gaps of a trajectory in the run ``folder``; None of one that was not among those furthest off."""
    name = msgspec.json.encode(trajectory_id)
    named = (data for data in newest_lines(folder / FILE) if name in data)
    for line in whole_lines(named, GapsLine):
        for each in line.trajectories:
            if each.trajectory_id == trajectory_id:
                return FoundGaps(line.version, each.largest, _numbers(each))
    return None


def largest_gaps(folder: Path, *, most: int = 20) -> list[dict[str, Any]]:
    """Of the newest updates, the trajectories with the largest gaps: version, trajectory id, nats."""
    found: list[dict[str, Any]] = []
    for line in whole_lines(islice(newest_lines(folder / FILE), UPDATES_MAX), GapsLine):
        found += [
            {"version": line.version, "trajectory_id": each.trajectory_id, "largest": each.largest}
            for each in line.trajectories
        ]
    return sorted(found, key=lambda each: -each["largest"])[:most]


def _numbers(each: TrajectoryGaps) -> list[float | None]:
    try:
        return [round(gap, 5) if math.isfinite(gap) else None for gap in each.decoded().tolist()]
    except ValueError:
        return []
