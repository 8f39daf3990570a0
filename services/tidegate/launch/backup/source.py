"""What the writer of backups needs of a run: a folder, or pods."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from tidegate.core.ids import PolicyVersion
from tidegate.launch.backup.manifest import BackupCounts


class FileParts(msgspec.Struct, frozen=True, eq=False):
    """A file by its path in the run folder; ``parts`` are as long as an object, but for the last one."""

    path: str
    size: int
    parts: AsyncIterator[bytes]


class BackupSource(Protocol):
    """The state of a run at one moment. ``left_out``: what the run needs besides its files, in words."""

    @property
    def run_id(self) -> str:
        """Of the run."""
        ...

    @property
    def made_at_s(self) -> float:
        """The moment."""
        ...

    @property
    def version(self) -> PolicyVersion:
        """Of its checkpoint."""
        ...

    @property
    def counts(self) -> BackupCounts:
        """Trajectories of ledger and journal."""
        ...

    @property
    def left_out(self) -> tuple[str, ...]:
        """In words."""
        ...

    def files(self) -> AsyncIterator[FileParts]:
        """Each file once; all parts of one are read before the next."""
        ...
