"""Client of the services that a backup copies."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from tidegate.core.errors import CorruptionError, DeadlineError, RecordError
from tidegate.v1.snapshot_service_pb2_grpc import SnapshotServiceStub
from tidegate.wire.clients.remote import remote_errors
from tidegate.wire.snapshots import (
    DEADLINE_S,
    FileHeader,
    SnapshotOpened,
    SnapshotRequest,
    request_to_proto,
    response_from_proto,
)

# Without a message: a service copies its database before the first byte of it.
SILENCE_S_MAX = 900.0


class SnapshotCall:
    """One service's files as of one moment, read in their order: ``open``, then ``next_file`` and its ``bytes_of``."""

    def __init__(self, channel: grpc.aio.Channel, *, service: str) -> None:
        """``service``: what an error names."""
        self._stub = SnapshotServiceStub(channel)
        self._service = service
        self._call: Any = None  # grpc.aio's types know no EOF

    async def open(self, request: SnapshotRequest) -> SnapshotOpened:
        """Return once the moment is fixed.

        Raises:
            NotFoundError: the service has nothing yet to copy.
            ConflictError: the ledger has what the journal of the request does not know.
            TidegateError: the service refused, or did not answer in time.
        """
        with remote_errors(self._service):
            self._call = self._stub.ReadSnapshot(request_to_proto(request), timeout=DEADLINE_S)
        opened = await self._next()
        if not isinstance(opened, SnapshotOpened):
            raise RecordError(
                f"{self._service} began a snapshot without its moment", why="another version runs"
            )
        return opened

    async def next_file(self) -> FileHeader | None:
        """The next file, once all bytes of the one before were read; None after the last.

        Raises:
            TidegateError: as ``open``.
        """
        header = await self._next()
        if header is None or isinstance(header, FileHeader):
            return header
        raise RecordError(f"{self._service} sent more of a file than it has")

    async def bytes_of(self, file: FileHeader) -> AsyncIterator[bytes]:
        """The bytes of the file that ``next_file`` returned.

        Raises:
            CorruptionError: they end before its size.
            TidegateError: as ``open``.
        """
        left = file.size
        while left:
            chunk = await self._next()
            if not isinstance(chunk, bytes) or not 0 < len(chunk) <= left:
                raise CorruptionError(
                    f"{self._service} cut {file.path} short", why=f"{left:,} bytes are missing"
                )
            left -= len(chunk)
            yield chunk

    def close(self) -> None:
        """End the call: the service frees what it holds for it."""
        if self._call is not None:
            self._call.cancel()

    async def _next(self) -> SnapshotOpened | FileHeader | bytes | None:
        assert self._call is not None, "open it first"
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                with remote_errors(self._service):
                    message = await self._call.read()
        except TimeoutError as error:
            raise DeadlineError(
                f"{self._service} sent nothing of its files", why=f"for {SILENCE_S_MAX:g} s"
            ) from error
        return None if message is grpc.aio.EOF else response_from_proto(message)
