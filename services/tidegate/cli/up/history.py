"""Reader of the learner's step log, ``learner/steps.jsonl``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.runtime.json_lines_file import whole_lines

STEPS_FILE = Path("learner") / "steps.jsonl"
# The last line holds a lag for each of its trajectories, thousands at most.
TAIL_BYTES = 256 << 10


def step_files(folder: Path) -> list[Path]:
    """The file and its rotated predecessors, oldest first."""
    current = folder / STEPS_FILE
    older = sorted(current.parent.glob(f"{current.name}.*"), reverse=True) if current.parent.is_dir() else []
    return [*older, *([current] if current.is_file() else [])]


def read_steps(folder: Path) -> Iterator[dict[str, Any]]:
    """Every step in the order it was written; a last line that a kill truncated is skipped."""
    for path in step_files(folder):
        with path.open("rb") as file:
            yield from whole_lines(file, dict[str, Any])


def last_update(folder: Path) -> dict[str, Any]:
    """The last whole line of the learner's step log; empty before the first update."""
    path = folder / STEPS_FILE
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()
    return next(whole_lines(reversed(lines), dict[str, Any]), dict[str, Any]())


def read_history(folder: Path, name: str) -> list[tuple[float, float]]:
    """(time, value) of one metric, of the steps that have it."""
    return [
        (float(step["at_s"]), float(step[name]))
        for step in read_steps(folder)
        if isinstance(step.get(name), (int, float)) and "at_s" in step
    ]
