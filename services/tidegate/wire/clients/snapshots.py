"""Client of the services that a backup copies."""

from collections.abc import AsyncIterator

import grpc

from tidegate.core.errors import RecordError
from tidegate.v1.snapshot_service_pb2_grpc import SnapshotServiceStub
from tidegate.wire.clients.file_stream import FileStream
from tidegate.wire.clients.remote import remote_errors
from tidegate.wire.snapshots import (
    DEADLINE_S,
    FileHeader,
    SnapshotOpened,
    SnapshotRequest,
    request_to_proto,
    response_from_proto,
)


class SnapshotCall:
    """One service's files as of one moment, read in their order: ``open``, then ``next_file`` and its ``bytes_of``."""

    def __init__(self, channel: grpc.aio.Channel, *, service: str) -> None:
        """``service``: what an error names."""
        self._stub = SnapshotServiceStub(channel)
        self._service = service
        self._stream: FileStream[SnapshotOpened | FileHeader | bytes] | None = None

    async def open(self, request: SnapshotRequest) -> SnapshotOpened:
        """Return once the moment is fixed.

        Raises:
            NotFoundError: the service has nothing yet to copy.
            ConflictError: the ledger has what the journal of the request does not know.
            TidegateError: the service refused, or did not answer in time.
        """
        with remote_errors(self._service):
            call = self._stub.ReadSnapshot(request_to_proto(request), timeout=DEADLINE_S)
        self._stream = FileStream(call, service=self._service, decode=response_from_proto)
        opened = await self._stream.next_message()
        if not isinstance(opened, SnapshotOpened):
            raise RecordError(
                f"{self._service} began a snapshot without its moment", why="another version runs"
            )
        return opened

    async def next_file(self) -> FileHeader | None:
        """As ``FileStream.next_file``."""
        return await self._opened().next_file()

    def bytes_of(self, file: FileHeader) -> AsyncIterator[bytes]:
        """As ``FileStream.bytes_of``."""
        return self._opened().bytes_of(file)

    def close(self) -> None:
        """End the call: the service frees what it holds for it."""
        if self._stream is not None:
            self._stream.close()

    def _opened(self) -> FileStream[SnapshotOpened | FileHeader | bytes]:
        assert self._stream is not None, "open it first"
        return self._stream
