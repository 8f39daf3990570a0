"""Whole-system samples: one JSON line a second in ``admission/stats.jsonl``, which reports plot.

A line is flat but for one section: ``at_s`` and ``bottleneck``, every signal of the diagnosis by its
name (``core.balance.Signals``), and ``values``, which holds ``<service>.<statistic>`` (counters summed over instances
and lives) and ``stream.<kind>`` (queued messages). ``problems``, where there are any: sentences about actors.
"""

import errno
import os
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidegate.core.balance import Bottleneck, Signals

FILE_NAME = "stats.jsonl"


class SystemSample(msgspec.Struct, frozen=True):
    """The whole system at one moment."""

    at_s: float
    bottleneck: Bottleneck
    signals: Signals
    values: dict[str, float]
    problems: list[str] = []

    def line(self) -> bytes:
        """One line of the file."""
        signals: dict[str, Any] = msgspec.to_builtins(self.signals)
        fields = {"at_s": self.at_s, "bottleneck": self.bottleneck, **signals, "values": self.values}
        if self.problems:
            fields["problems"] = self.problems
        return msgspec.json.encode({**fields, "queue_depth_batches": self.signals.depth_batches()}) + b"\n"


class JsonLine(Protocol):
    """An item that encodes itself as one line of JSON."""

    def line(self) -> bytes:
        """One line of JSON with its newline."""
        ...


class JsonLinesFile:
    """Appends lines; at ``bytes_max`` the file becomes ``.1``, ``.1`` becomes ``.2``, the oldest is deleted."""

    def __init__(self, path: Path, *, bytes_max: int, files_kept: int) -> None:
        """Append to an existing file; a line that a crash left incomplete is terminated."""
        self._path = path
        self._bytes_max = bytes_max
        self._files_kept = files_kept
        self._file = path.open("ab+", buffering=0)
        self._torn = False
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            self._torn = self._file.read(1) != b"\n"

    def append(self, item: JsonLine) -> None:
        """Write one line to the operating system.

        Raises:
            OSError: the disk refused; the line is lost, and the next one begins on a line of its own.
        """
        line = item.line()
        data = b"\n" + line if self._torn else line
        self._torn = True
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._torn = False
        if self._file.tell() >= self._bytes_max:
            self._rotate()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._files_kept, 0, -1):
            newer = _rotated(self._path, number - 1)
            if newer.exists():
                newer.replace(_rotated(self._path, number))
        self._file = self._path.open("ab+", buffering=0)


def _rotated(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
