"""Small things that outlive admission, a file each: what was asked for, and what was seen of the scale."""

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tidegate.runtime.files import replace_file

ValueT = TypeVar("ValueT", bound=msgspec.Struct)


class StateFile(Generic[ValueT]):
    """One value on disk. A crash leaves it to the next life; what cannot be read counts as never kept."""

    def __init__(self, path: Path, nothing: ValueT) -> None:
        """``path`` holds the value while there is one; ``nothing`` stands for none."""
        self._path, self._nothing = path, nothing

    def read(self) -> ValueT:
        """The value that was kept; ``nothing`` if the file is missing or unreadable."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=type(self._nothing))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return self._nothing

    def write(self, value: ValueT) -> None:
        """Keep it."""
        replace_file(self._path, msgspec.json.encode(value))

    def clear(self) -> None:
        """Forget it."""
        self._path.unlink(missing_ok=True)
