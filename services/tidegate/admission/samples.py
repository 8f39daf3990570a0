"""Whole-system samples: one JSON line a second in ``admission/stats.jsonl``, what a report plots.

A line is ``{"at_s": ..., "values": {...}, "bottleneck": ...}``. ``values`` holds ``<service>.<statistic>`` (counters
summed over instances and lives) and ``signal.<name>`` (the window that the diagnosis was made from).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

FILE_NAME = "stats.jsonl"


class Sample(msgspec.Struct, frozen=True):
    """The whole system at one moment."""

    at_s: float
    values: dict[str, float]
    bottleneck: str = ""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Sample)


class SampleFile:
    """Appends samples; at ``bytes_max`` the file becomes ``.1``, ``.1`` becomes ``.2``, the oldest is deleted."""

    def __init__(self, path: Path, *, bytes_max: int, files_kept: int) -> None:
        """Go on after whatever a former life wrote; a line it left half-written is ended."""
        self._path = path
        self._bytes_max = bytes_max
        self._files_kept = files_kept
        self._file = path.open("ab+")
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def append(self, sample: Sample) -> None:
        """Write one line; it is in the operating system's hands when this returns."""
        self._file.write(_ENCODER.encode(sample) + b"\n")
        self._file.flush()
        if self._file.tell() >= self._bytes_max:
            self._rotate()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._files_kept, 0, -1):
            newer = _rotated(self._path, number - 1)
            if newer.exists():
                newer.replace(_rotated(self._path, number))
        self._file = self._path.open("ab")


def read_samples(path: Path) -> Iterator[Sample]:
    """Every sample, oldest first, rotated files included; lines cut off by a kill are skipped."""
    rotated = [each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdecimal()]
    for each in [*sorted(rotated, key=lambda one: -int(one.suffix[1:])), path]:
        if not each.exists():
            continue
        with each.open("rb") as file:
            for line in file:
                try:
                    yield _DECODER.decode(line)
                except msgspec.DecodeError:
                    continue


def _rotated(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
