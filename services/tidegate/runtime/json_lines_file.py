"""Files of lines that are only appended to, bounded by exchanging them, as whole lines whatever ends their writer."""

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from tidegate.core.json_text import NOT_JSON

T = TypeVar("T")


class JsonLinesFile:
    """Appends lines. One that would exceed ``bytes_max`` begins the next file: the present one becomes ``.1``.

    ``.1`` becomes ``.2`` then, up to ``files_kept``; the oldest is replaced.
    """

    def __init__(self, path: Path, *, bytes_max: int, files_kept: int = 1) -> None:
        """Opens nothing yet."""
        self._path = path
        self._bytes_max = bytes_max
        self._files_kept = files_kept
        self._file: BinaryIO | None = None
        # Whether the last line is incomplete: a kill or a full disk cut it.
        self._torn = False

    def append(self, line: bytes) -> None:
        """Write one line, which ends in a newline, in a single write to the operating system.

        Raises:
            OSError: the disk refused; the line is lost, and the next one begins on a line of its own.
        """
        file = self._opened()
        if file.tell() and file.tell() + len(line) + self._torn > self._bytes_max:
            file = self._exchanged()
        data = b"\n" + line if self._torn else line
        self._torn = True
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._torn = False

    def close(self) -> None:
        """Close the file; another line opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = file = self._path.open("ab+", buffering=0)
            self._torn = False
            if file.tell():
                file.seek(-1, os.SEEK_END)
                self._torn = file.read(1) != b"\n"
        return self._file

    def _exchanged(self) -> BinaryIO:
        """The next file; one that cannot be made now is made for the next line."""
        self.close()
        for number in range(self._files_kept, 0, -1):
            newer = _named(self._path, number - 1)
            if newer.exists():
                newer.replace(_named(self._path, number))
        return self._opened()


def newest_lines(path: Path, *, files_kept: int = 1) -> Iterator[bytes]:
    """The lines of a ``JsonLinesFile``, the newest first; none where there is no file."""
    for number in range(files_kept + 1):
        try:
            data = _named(path, number).read_bytes()
        except FileNotFoundError:
            continue
        yield from reversed(data.splitlines())


def whole_lines(lines: Iterable[bytes], kind: type[T]) -> Iterator[T]:
    """The lines as records of a kind; those that a kill or a full disk cut, or another version wrote, are left out."""
    decoder = msgspec.json.Decoder(kind)
    for line in lines:
        try:
            record = decoder.decode(line)
        except NOT_JSON:
            continue
        yield record


def _named(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path
