"""Streams a service's files as of one moment to the backup of a run in a cluster."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tidegate.core.errors import RecordError, UnavailableError
from tidegate.runtime.rpc import Registration
from tidegate.runtime.snapshots.files import MomentOf, SnapshotFiles, parts_of
from tidegate.runtime.threads import iterate_in_thread
from tidegate.wire.snapshots import (
    DEADLINE_S,
    READ_METHOD,
    SNAPSHOTS_NAME,
    FileHeader,
    SnapshotRequest,
    add_snapshots,
    file_to_proto,
    opened_to_proto,
    request_from_proto,
    serialize_response,
)
from tidegate.wire.subjects import CHUNK_BYTES

# Copies for one call; those of a process that was killed are removed at the next start.
STAGING_PREFIX = ".snapshot-"
# How long a call waits for the one before it.
BEFORE_S_MAX = 5.0


class SnapshotServicer:
    """Answers one call at a time: a second one would take the disk's space for another copy."""

    def __init__(self, moment_of: MomentOf, *, folder: Path, staging_in: Path) -> None:
        """``folder``: of the run on this volume. ``staging_in``: this service's own folder in it."""
        self._moment_of = moment_of
        self._folder = folder
        self._staging_in = staging_in
        self._reading = asyncio.Lock()
        for left in staging_in.glob(f"{STAGING_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)

    def registration(self) -> Registration:
        """How the server of the service adds it."""
        return Registration(
            add=add_snapshots,
            servicer=self,
            name=SNAPSHOTS_NAME,
            raw_responses={READ_METHOD: serialize_response},
        )

    async def ReadSnapshot(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The moment, then each file and its bytes. It ends with the caller's deadline, which is bounded.

        Raises:
            RecordError: the caller sets no deadline, or one that is too long.
            UnavailableError: another call is being answered.
        """
        left_s = context.time_remaining()
        if left_s is None or left_s > 2 * DEADLINE_S:  # gRPC rounds long deadlines up
            raise RecordError(
                "A snapshot is read without a deadline", why=f"its copies stay for {DEADLINE_S:g} s at most"
            )
        try:
            # A call that was given up ends a moment later.
            async with asyncio.timeout(BEFORE_S_MAX):
                await self._reading.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                "Another backup reads this service",
                fix="one process makes the backups of a run: try it again",
            ) from error
        try:
            async for message in iterate_in_thread(partial(self._messages, request_from_proto(request))):
                yield message
        finally:
            self._reading.release()

    def _messages(self, request: SnapshotRequest) -> Generator[Any]:
        with ExitStack() as opened:
            staging = Path(mkdtemp(prefix=STAGING_PREFIX, dir=self._staging_in))
            opened.callback(shutil.rmtree, staging, ignore_errors=True)
            files = SnapshotFiles(self._folder, staging=staging, opened=opened)
            with closing(self._moment_of(request, files)) as moments:
                for moment in moments:
                    yield opened_to_proto(moment)
            for file in files.found:
                yield file_to_proto(FileHeader(file.path, file.size))
                yield from parts_of(file, CHUNK_BYTES)
