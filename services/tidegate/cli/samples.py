"""Reader of admission's samples, ``admission/stats.jsonl``: one JSON object a line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tidegate.admission.samples import FILE_NAME
from tidegate.runtime.json_lines_file import whole_lines

SAMPLES_FILE = Path("admission") / FILE_NAME
TAIL_BYTES = 256 << 10


def read_samples(folder: Path) -> Iterator[dict[str, Any]]:
    """Every sample in the order it was written, rotated files first; cut lines are skipped."""
    current = folder / SAMPLES_FILE
    older = [path for path in current.parent.glob(f"{FILE_NAME}.*") if path.suffix[1:].isdecimal()]
    for path in (*sorted(older, key=lambda path: -int(path.suffix[1:])), current):
        if path.is_file():
            with path.open("rb") as file:
                yield from whole_lines(file, dict[str, Any])


def last_working_sample(folder: Path) -> dict[str, Any] | None:
    """The newest sample before admission was paused (as it is at the end of a run); None without samples."""
    path = folder / SAMPLES_FILE
    if not path.is_file():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()
    newest: dict[str, Any] | None = None
    for sample in whole_lines(reversed(lines), dict[str, Any]):
        if not sample.get("paused"):
            return sample
        newest = newest or sample
    return newest


def trains(sample: dict[str, Any]) -> bool:
    """Whether the learner trained, and admission was not paused, when a sample was written."""
    return not sample.get("paused") and float(sample.get("learner_samples_per_s") or 0.0) > 0.0


def numbers(sample: dict[str, Any]) -> dict[str, float]:
    """All numbers of a sample by name, also those of its sections; an outer name wins over an inner one."""
    found: dict[str, float] = {}
    for name, value in sample.items():
        if isinstance(value, dict):
            found = numbers(cast("dict[str, Any]", value)) | found
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = float(value)
    return found
