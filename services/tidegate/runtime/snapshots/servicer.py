"""Streams a service's files: as of one moment to the backup of a run in a cluster, and its records to a page."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tidegate.core.errors import RecordError, UnavailableError
from tidegate.runtime.rpc import Registration
from tidegate.runtime.snapshots.files import AddRecords, MomentOf, SnapshotFiles, parts_of
from tidegate.runtime.threads import iterate_in_thread
from tidegate.wire.records import (
    READ_RECORDS_METHOD,
    RECORDS_DEADLINE_S,
    RECORDS_NAME,
    add_records,
    record_file_to_proto,
    serialize_records_response,
)
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
        _remove_left(staging_in)

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
        _check_deadline(context, DEADLINE_S)
        async with _alone(self._reading, reader="backup"):
            async for message in iterate_in_thread(partial(self._messages, request_from_proto(request))):
                yield message

    def _messages(self, request: SnapshotRequest) -> Generator[Any]:
        with _staged(self._folder, self._staging_in) as files:
            with closing(self._moment_of(request, files)) as moments:
                for moment in moments:
                    yield opened_to_proto(moment)
            for file in files.found:
                yield file_to_proto(FileHeader(file.path, file.size))
                yield from parts_of(file, CHUNK_BYTES)


class RecordsServicer:
    """Answers one call at a time, beside one of a backup."""

    def __init__(self, add: AddRecords, *, folder: Path, staging_in: Path) -> None:
        """As of ``SnapshotServicer``."""
        self._add = add
        self._folder = folder
        self._staging_in = staging_in
        self._reading = asyncio.Lock()
        _remove_left(staging_in)

    def registration(self) -> Registration:
        """How the server of the service adds it."""
        return Registration(
            add=add_records,
            servicer=self,
            name=RECORDS_NAME,
            raw_responses={READ_RECORDS_METHOD: serialize_records_response},
        )

    async def ReadRecords(self, _request: Any, context: Any) -> AsyncIterator[Any]:
        """Each file and its bytes; none while the service has written nothing. It ends with the caller's deadline.

        Raises:
            RecordError: the caller sets no deadline, or one that is too long.
            UnavailableError: another call is being answered.
        """
        _check_deadline(context, RECORDS_DEADLINE_S)
        async with _alone(self._reading, reader="page"):
            async for message in iterate_in_thread(self._messages):
                yield message

    def _messages(self) -> Generator[Any]:
        with _staged(self._folder, self._staging_in) as files:
            self._add(files)
            for file in files.found:
                yield record_file_to_proto(FileHeader(file.path, file.size))
                yield from parts_of(file, CHUNK_BYTES)


def _remove_left(staging_in: Path) -> None:
    for left in staging_in.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _staged(folder: Path, staging_in: Path) -> Generator[SnapshotFiles]:
    with ExitStack() as opened:
        staging = Path(mkdtemp(prefix=STAGING_PREFIX, dir=staging_in))
        opened.callback(shutil.rmtree, staging, ignore_errors=True)
        yield SnapshotFiles(folder, staging=staging, opened=opened)


def _check_deadline(context: Any, bound_s: float) -> None:
    left_s = context.time_remaining()
    if left_s is None or left_s > 2 * bound_s:  # gRPC rounds long deadlines up
        raise RecordError(
            "Files are read without a deadline", why=f"copies of databases stay for {bound_s:g} s at most"
        )


@asynccontextmanager
async def _alone(reading: asyncio.Lock, *, reader: str) -> AsyncGenerator[None]:
    try:
        # A call that was given up ends a moment later.
        async with asyncio.timeout(BEFORE_S_MAX):
            await reading.acquire()
    except TimeoutError as error:
        raise UnavailableError(
            f"Another {reader} reads this service", fix=f"a run has one {reader}: try it again"
        ) from error
    try:
        yield
    finally:
        reading.release()
