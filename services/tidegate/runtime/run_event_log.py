"""The events of a run (evaluations, lineages, directives) as one JSON object a line, kept when the broker is gone."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.runtime.json_lines_file import JsonLinesFile, whole_lines

EVENTS_FILE = "events.jsonl"
# Past this the file becomes events.jsonl.1, which replaces the one before.
BYTES_MAX = 16 << 20
# Where they are: what admission writes in a cluster, and what a supervisor does.
_PARTS = ("admission/", "")


class RunEventLog:
    """Appends the events that services publish, unchanged."""

    def __init__(self, folder: Path) -> None:
        self._file = JsonLinesFile(folder / EVENTS_FILE, bytes_max=BYTES_MAX)

    def append(self, event: bytes) -> None:
        """Append one event; anything but one line of JSON is ignored, and so is what a full disk refuses."""
        if b"\n" in event or not event.startswith(b"{"):
            return
        with contextlib.suppress(OSError):
            self._file.append(event + b"\n")
        self._file.close()


def events_size(folder: Path) -> int:
    """Bytes of the files that still grow, by which a reader sees that there are new events."""
    size = 0
    for part in _PARTS:
        with contextlib.suppress(FileNotFoundError):  # for a moment also while the log is rotated
            size += (folder / f"{part}{EVENTS_FILE}").stat().st_size
    return size


def read_events(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Events of one kind in order; lines that a kill truncated are skipped.

    ``folder``: of a run; what admission wrote while the run was in a cluster comes first.
    """
    names = [f"{part}{EVENTS_FILE}{suffix}" for part in _PARTS for suffix in (".1", "")]
    for name in names:
        try:
            opened = (folder / name).open("rb")
        except FileNotFoundError:  # for a moment also while the log is rotated
            continue
        with opened as file:
            for event in whole_lines(file, dict[str, Any]):
                if event.get("kind") == kind:
                    yield event
