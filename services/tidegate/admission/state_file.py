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

    def read(self) -> ValueT:
        """The stored value; ``nothing`` if the file is missing or unreadable."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=type(self._nothing))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return self._nothing

    def write(self, value: ValueT) -> None:
        """Replace the stored value."""
        replace_file(self._path, msgspec.json.encode(value))

    def clear(self) -> None:
        """Delete the stored value."""
        self._path.unlink(missing_ok=True)
