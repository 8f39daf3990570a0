"""The newest checkpoint of the learner that works, on the disk of one that stands by.

One copy at a time, of one checkpoint. A copy that is not whole is deleted at the next one, at the latest.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path, PurePosixPath

from tidegate.core.errors import RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.learner.checkpoint import FILES, PARTIAL_PREFIX, adopt, checkpoints_in, version_named
from tidegate.wire.bounds import shown
from tidegate.wire.clients.learner import LearnerClient
from tidegate.wire.snapshots import FileHeader


class CheckpointCopy:
    """Copies into a folder of checkpoints, of which it is the only writer meanwhile."""

    def __init__(self, directory: Path, client: LearnerClient) -> None:
        """``client``: of the learner that works."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.client = client
        self._adopting: asyncio.Future[None] | None = None

    def newest(self) -> PolicyVersion | None:
        """What a start from this disk begins from."""
        return next(reversed(checkpoints_in(self._directory).values()), None)

    async def refresh(self) -> PolicyVersion | None:
        """Copy the newest checkpoint unless it is here; returns its version, None where nothing was copied.

        Raises:
            RecordError: what was sent is no checkpoint.
            CorruptionError: its bytes are not what was written.
            TidegateError: the learner that works refused, or does not answer.
            OSError: the disk refused.
        """
        for left in self._directory.glob(f"{PARTIAL_PREFIX}*"):
            await asyncio.to_thread(shutil.rmtree, left)
        name = ""
        with closing(self.client.read_checkpoint(known=self.newest())) as stream:
            while (file := await stream.next_file()) is not None:
                name = _checkpoint_of(file, before=name)
                folder = self._directory / f"{PARTIAL_PREFIX}{name}"
                folder.mkdir(exist_ok=True)
                await _write(folder / PurePosixPath(file.path).name, stream.bytes_of(file))
        if not name:
            return None
        partial = self._directory / f"{PARTIAL_PREFIX}{name}"
        self._adopting = asyncio.ensure_future(asyncio.to_thread(adopt, partial, name))
        await asyncio.shield(self._adopting)
        return version_named(name)

    async def close(self) -> None:
        """Return once nothing of a ``refresh`` that was cancelled goes on: its thread cannot be."""
        if self._adopting is not None:
            await asyncio.wait([self._adopting])


def _checkpoint_of(file: FileHeader, *, before: str) -> str:
    """The name of the checkpoint that a file is part of: the same as that of the file ``before``."""
    *_, name, own = ("", "", *PurePosixPath(file.path).parts)
    if version_named(name) is None or own not in FILES or name != (before or name):
        raise RecordError(
            f"{shown(file.path)} is no file of the checkpoint that is copied",
            why=f"files of a checkpoint are {', '.join(sorted(FILES))}, in one folder",
        )
    return name


async def _write(path: Path, parts: AsyncIterator[bytes]) -> None:
    """In a thread: the event loop answers health checks meanwhile."""
    with path.open("wb") as file:
        async for part in parts:
            await asyncio.to_thread(file.write, part)
        file.flush()
        await asyncio.to_thread(os.fsync, file.fileno())
