"""Files that another program replaces while a service runs: a kubelet writes a changed Secret into its pod."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import structlog

from tidegate.core.errors import ConfigError
from tidegate.runtime.files import LOOK_PERIOD_S, change_mark

ContentT = TypeVar("ContentT")

log = structlog.get_logger("changing_file")

_UNREADABLE = (OSError, ValueError, msgspec.MsgspecError)


class ChangingFile(Generic[ContentT]):
    """A parsed file, looked at again at most once a second.

    One that cannot be read any more keeps its last content, and says so in the log.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], ContentT], *, what: str, fix: str) -> None:
        """Read it. ``parse``: raises ValueError for what is no such file. ``what``, ``fix``: of the error.

        Raises:
            ConfigError: the file cannot be read or parsed.
        """
        self._path = path
        self._parse = parse
        self._what = what
        self._looked_at_s = time.monotonic()
        self._mark = (0, 0)
        try:
            self._content = self._read()
        except _UNREADABLE as error:
            raise ConfigError(f"The {what} {path} cannot be read", why=str(error), fix=fix) from error

    def content(self) -> ContentT:
        """The newest content that could be read."""
        now_s = time.monotonic()
        if now_s - self._looked_at_s >= LOOK_PERIOD_S:
            self._looked_at_s = now_s
            self.look()
        return self._content

    def look(self) -> None:
        """Read the file now if it was replaced."""
        try:
            if change_mark(self._path) != self._mark:
                self._content = self._read()
        except _UNREADABLE as error:
            log.warning("file_unreadable", what=self._what, file=str(self._path), error=str(error))

    def _read(self) -> ContentT:
        mark = change_mark(self._path)
        content = self._parse(self._path.read_bytes())
        self._mark = mark
        return content
