"""Streams a service's files: as of one moment to the backup of a run in a cluster, and its records to a page.

``FileCalls`` is what both do, and a learner that sends its checkpoint to one that stands by.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from secrets import token_hex
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
    """What a backup asks: one call at a time, because a second one would take the disk's space for another copy."""

    def __init__(self, moment_of: MomentOf, *, folder: Path, staging_in: Path) -> None:
        """``folder``: of the run on this volume. ``staging_in``: this service's own folder in it."""
        self._moment_of = moment_of
        self._calls = FileCalls(folder, staging_in, reader="backup", deadline_s=DEADLINE_S)

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

        def moments(files: SnapshotFiles) -> Generator[Any]:
            with closing(self._moment_of(request_from_proto(request), files)) as found:
                for moment in found:
                    yield opened_to_proto(moment)

        async for message in self._calls.answer(context, moments, header_of=file_to_proto):
            yield message


class RecordsServicer:
    """What a page asks: one call at a time, beside one of a backup."""

    def __init__(self, add: AddRecords, *, folder: Path, staging_in: Path) -> None:
        """As of ``SnapshotServicer``."""
        self._add = add
        self._calls = FileCalls(folder, staging_in, reader="page", deadline_s=RECORDS_DEADLINE_S)

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

        def no_moments(files: SnapshotFiles) -> Iterable[Any]:
            self._add(files)
            return ()

        async for message in self._calls.answer(context, no_moments, header_of=record_file_to_proto):
            yield message


class FileCalls:
    """Answers one call after the other by files, and by copies that are removed with the call."""

    def __init__(self, folder: Path, staging_in: Path, *, reader: str, deadline_s: float) -> None:
        """``reader``: the one process that calls, for errors. ``deadline_s``: of a call, at most."""
        self._folder = folder
        self._staging_in = staging_in
        self._reader = reader
        self._deadline_s = deadline_s
        self._reading = asyncio.Lock()
        for left in staging_in.glob(f"{STAGING_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)

    async def answer(
        self,
        context: Any,
        moments_of: Callable[[SnapshotFiles], Iterable[Any]],
        *,
        header_of: Callable[[FileHeader], Any],
    ) -> AsyncIterator[Any]:
        """The messages of ``moments_of``, which adds files, then for each file ``header_of`` it and its bytes.

        Raises:
            RecordError: the caller sets no deadline, or one that is too long.
            UnavailableError: another call is being answered.
        """
        left_s = context.time_remaining()
        if left_s is None or left_s > 2 * self._deadline_s:  # gRPC rounds long deadlines up
            raise RecordError(
                "Files are read without a deadline",
                why=f"copies of databases stay for {self._deadline_s:g} s at most",
            )
        try:
            # A call that was given up ends a moment later.
            async with asyncio.timeout(BEFORE_S_MAX):
                await self._reading.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                f"Another {self._reader} reads this service",
                fix=f"a run has one {self._reader}: try it again",
            ) from error
        try:
            async for message in iterate_in_thread(partial(self._messages, moments_of, header_of)):
                yield message
        finally:
            self._reading.release()

    def _messages(
        self, moments_of: Callable[[SnapshotFiles], Iterable[Any]], header_of: Callable[[FileHeader], Any]
    ) -> Generator[Any]:
        with ExitStack() as opened:
            staging = self._staging_in / f"{STAGING_PREFIX}{token_hex(4)}"
            opened.callback(shutil.rmtree, staging, ignore_errors=True)
            files = SnapshotFiles(self._folder, staging=staging, opened=opened)
            yield from moments_of(files)
            for file in files.found:
                yield header_of(FileHeader(file.path, file.size))
                yield from parts_of(file, CHUNK_BYTES)
