"""Reader of the learner's step log, ``learner/steps.jsonl``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

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
    decoder = msgspec.json.Decoder(dict[str, Any])
    for path in step_files(folder):
        with path.open("rb") as file:
            for line in file:
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue


def last_update(folder: Path) -> dict[str, Any]:
    """The last whole line of the learner's step log; empty before the first update."""
    path = folder / STEPS_FILE
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return {}


def read_history(folder: Path, name: str) -> list[tuple[float, float]]:
    """(time, value) of one metric, of the steps that have it."""
    return [
        (float(step["at_s"]), float(step[name]))
        for step in read_steps(folder)
        if isinstance(step.get(name), (int, float)) and "at_s" in step
    ]
