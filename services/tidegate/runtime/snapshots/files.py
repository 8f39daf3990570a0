"""Files that go on existing until they are copied, and copies of databases as of one moment."""

import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.runtime.backup_state import NoSpaceError
from tidegate.runtime.replication.changes import forget_replica
from tidegate.wire.snapshots import SnapshotOpened, SnapshotRequest

# What is left to the run while its databases are copied on its disk.
FREE_BYTES_MIN = 64 << 20


class SnapshotFile(msgspec.Struct, frozen=True, eq=False):
    """An open file, of which the first ``size`` bytes do not change any more; ``path``: in the run folder."""

    path: str
    file: BinaryIO
    size: int


class SnapshotFiles:
    """Opens files as they are found; they are closed with ``opened``."""

    def __init__(self, folder: Path, *, staging: Path, opened: ExitStack) -> None:
        """``folder``: of the run, or of one service of it. ``staging``: on its disk, made with the first copy."""
        self.folder = folder
        self.staging = staging
        self.found: list[SnapshotFile] = []
        self._opened = opened

    def add(self, path: Path, *, as_path: str = "") -> bool:
        """Whether it was there."""
        try:
            file = self._opened.enter_context(path.open("rb"))
        except (FileNotFoundError, IsADirectoryError):
            return False
        name = as_path or path.relative_to(self.folder).as_posix()
        self.found.append(SnapshotFile(name, file, file.seek(0, 2)))
        return True

    def add_all(self, paths: Iterable[Path]) -> bool:
        """Whether there were some and all of them were there; else none is added."""
        before = len(self.found)
        wanted = list(paths)
        if wanted and all(self.add(path) for path in wanted):
            return True
        del self.found[before:]
        return False

    def add_found(self, *patterns: str) -> None:
        """The files that match, by their paths in the folder."""
        for pattern in patterns:
            for path in sorted(self.folder.glob(pattern)):
                self.add(path)

    def add_database(self, source: sqlite3.Connection, path: Path) -> None:
        """A copy of a database as of the moment that a read transaction sees.

        Raises:
            NoSpaceError: the disk has too little space for the copy.
        """
        self.staging.mkdir(mode=0o700, exist_ok=True)
        needed = path.stat().st_size + FREE_BYTES_MIN
        free = shutil.disk_usage(self.staging).free
        if free < needed:
            raise NoSpaceError(
                f"The disk of {path.parent} has too little space for a backup",
                why=f"a copy of {path.name} needs {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free",
                fix="free space; the run goes on, and so does the backup once there is space",
            )
        copied = self.staging / path.name
        try:
            with closing(sqlite3.connect(copied, isolation_level=None)) as copy:
                source.backup(copy)
                forget_replica(copy)
        except sqlite3.OperationalError as error:  # a damaged page is another error
            raise NoSpaceError(
                f"{path.name} could not be copied for a backup",
                why=str(error),
                fix="free space on the disk of the run; the run goes on, and so does the backup once there is space",
            ) from error
        self.add(copied, as_path=path.relative_to(self.folder).as_posix())


# Fixes the moment of a service, which it yields; then adds its files.
MomentOf: TypeAlias = Callable[[SnapshotRequest, SnapshotFiles], Generator[SnapshotOpened]]
# Adds the files that a page shows of a service.
AddRecords: TypeAlias = Callable[[SnapshotFiles], None]


def parts_of(file: SnapshotFile, part_bytes: int) -> Iterator[bytes]:
    """Its content in parts, all but the last of ``part_bytes``.

    Raises:
        TidegateError: it became shorter than it was.
    """
    file.file.seek(0)
    left = file.size
    while left:
        data = file.file.read(min(part_bytes, left))
        if not data:
            raise TidegateError(f"{file.path} became shorter while it was copied")
        left -= len(data)
        yield data
