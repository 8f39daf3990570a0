"""Small state that survives a restart of admission, one file each: a pause, overrides, the last seen scale."""

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tidegate.runtime.files import replace_file

ValueT = TypeVar("ValueT", bound=msgspec.Struct)


class StateFile(Generic[ValueT]):
    """One value on disk, kept across a crash; an unreadable file counts as missing."""

    def __init__(self, path: Path, nothing: ValueT) -> None:
        """``nothing``: the value of a missing file."""
        self._path, self._nothing = path, nothing
        # What the file was seen to hold; None before that.
        self._kept: ValueT | None = None

    def read(self) -> ValueT:
        """The stored value; ``nothing`` if the file is missing or unreadable."""
        try:
            self._kept = msgspec.json.decode(self._path.read_bytes(), type=type(self._nothing))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            self._kept = self._nothing
        return self._kept

    def write(self, value: ValueT) -> None:
        """Replace the stored value.

        Raises:
            OSError: the disk refused; the value before stays.
        """
        replace_file(self._path, msgspec.json.encode(value))
        self._kept = value

    def keep(self, value: ValueT) -> str:
        """``write`` what the file does not hold; returns why the disk refused, empty when it did not."""
        try:
            if value != self._kept:
                self.write(value)
        except OSError as error:
            return str(error)
        return ""

    def clear(self) -> None:
        """Delete the stored value.

        Raises:
            OSError: the disk refused.
        """
        self._path.unlink(missing_ok=True)
        self._kept = self._nothing
