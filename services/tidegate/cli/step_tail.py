"""The learner's step log, followed while it grows, and the curves in it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tidegate.cli.samples import numbers
from tidegate.cli.up.history import STEPS_FILE, step_files

# Of an update: what places it in time, and sections that are no curves.
NOT_CURVES = frozenset({"at_s", "step", "lineage", "by_lag", "response", "updates"})


def curves_of(update: dict[str, Any]) -> dict[str, float]:
    """What of an update is a point of a curve, by name: its numbers, the trainer's metrics among them."""
    return numbers({name: value for name, value in update.items() if name not in NOT_CURVES})


class StepTail:
    """The updates of a run folder, each once, in the order they were written; cut lines are read once they are whole.

    Not safe for threads: one caller at a time.
    """

    def __init__(self, folder: Path) -> None:
        """``folder``: the run's."""
        self._folder = folder
        self._decoder = msgspec.json.Decoder(dict[str, Any])
        self._file_id = 0
        self._offset = 0

    def new(self) -> tuple[bool, list[dict[str, Any]]]:
        """The updates since the last call, and whether they are all of them from the first on.

        They are at the first call, and after the log was rotated or replaced: then what was read before comes again.
        """
        path = self._folder / STEPS_FILE
        try:
            status = path.stat()
        except FileNotFoundError:  # before the first update, and for a moment while the log is rotated
            return False, []
        from_first = status.st_ino != self._file_id or status.st_size < self._offset
        updates: list[dict[str, Any]] = []
        if from_first:
            self._file_id, self._offset = status.st_ino, 0
            for older in step_files(self._folder):
                if older != path:
                    updates += (update for update, _ in self._whole_lines(older, from_byte=0))
        for update, end in self._whole_lines(path, from_byte=self._offset):
            self._offset = end
            updates.append(update)
        return from_first, updates

    def _whole_lines(self, path: Path, *, from_byte: int) -> Iterator[tuple[dict[str, Any], int]]:
        """Each update with where its line ends; damaged lines are left out."""
        try:
            opened = path.open("rb")
        except FileNotFoundError:  # rotated meanwhile: the next call begins again
            return
        with opened as file:
            file.seek(from_byte)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                from_byte += len(line)
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    yield self._decoder.decode(line), from_byte
