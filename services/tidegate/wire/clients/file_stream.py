"""Files that a service streams one after the other, as an answer to one call."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import grpc

from tidegate.core.errors import CorruptionError, DeadlineError, RecordError
from tidegate.wire.clients.remote import remote_errors
from tidegate.wire.snapshots import FileHeader

# Without a message: a service copies its database before the first byte of it.
SILENCE_S_MAX = 900.0
MessageT = TypeVar("MessageT")


class FileStream(Generic[MessageT]):
    """Reads the messages of a call in their order: ``next_file``, then its ``bytes_of``, until there is no other."""

    def __init__(self, call: Any, *, service: str, decode: Callable[[Any], MessageT]) -> None:
        """``call``: a started call, which ``close`` ends. ``service``: what an error names."""
        self._call = call  # grpc.aio's types know no EOF
        self._service = service
        self._decode = decode

    async def next_file(self) -> FileHeader | None:
        """The next file, once all bytes of the one before were read; None after the last.

        Raises:
            TidegateError: the service refused, or did not answer in time.
        """
        header = await self.next_message()
        if header is None or isinstance(header, FileHeader):
            return header
        raise RecordError(f"{self._service} sent more of a file than it has")

    async def bytes_of(self, file: FileHeader) -> AsyncIterator[bytes]:
        """The bytes of the file that ``next_file`` returned.

        Raises:
            CorruptionError: they end before its size.
            TidegateError: as ``next_file``.
        """
        left = file.size
        while left:
            chunk = await self.next_message()
            if not isinstance(chunk, bytes) or not 0 < len(chunk) <= left:
                raise CorruptionError(
                    f"{self._service} cut {file.path} short", why=f"{left:,} bytes are missing"
                )
            left -= len(chunk)
            yield chunk

    async def next_message(self) -> MessageT | None:
        """The next message; None after the last.

        Raises:
            TidegateError: as ``next_file``.
        """
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                with remote_errors(self._service):
                    message = await self._call.read()
        except TimeoutError as error:
            raise DeadlineError(
                f"{self._service} sent nothing of its files", why=f"for {SILENCE_S_MAX:g} s"
            ) from error
        return None if message is grpc.aio.EOF else self._decode(message)

    def close(self) -> None:
        """End the call: the service frees what it holds for it."""
        self._call.cancel()
