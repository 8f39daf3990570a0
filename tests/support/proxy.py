"""A TCP proxy that a test may stall: connections stay open and nothing arrives, as where a network lost a link.

It counts what is sent to its target, and may be as slow as a link: a test then acts in the middle of a transfer.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from tests.support.broker import free_port
from tidegate.runtime.ports import LOOPBACK

CHUNK_BYTES = 65_536
START_TIMEOUT_S = 60.0


class Proxy:
    """Forwards each connection to one port of this machine; it works in a thread of its own."""

    def __init__(
        self, target_port: int, *, answer_delay_s: float = 0.0, bytes_per_s: float = math.inf
    ) -> None:
        """Not yet listening. ``answer_delay_s``: how long each answer of the target takes.

        ``bytes_per_s``: how fast each connection sends to the target.
        """
        self.port = free_port()
        self.num_connections = 0
        self.bytes_sent = 0
        self._target_port = target_port
        self._answer_delay_s = answer_delay_s
        self._bytes_per_s = bytes_per_s
        self._loop = asyncio.new_event_loop()
        self._forwards = asyncio.Event()
        self._forwards.set()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def start(self) -> None:
        """Return once it listens."""
        self._thread.start()
        assert self._listens.wait(START_TIMEOUT_S), f"the proxy does not listen on {self.port}"

    def close(self) -> None:
        """End every connection."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)

    @contextmanager
    def stalled(self) -> Generator[None]:
        """Forward nothing, neither bytes nor the end of a connection; new connections are accepted and as silent."""
        self._loop.call_soon_threadsafe(self._forwards.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._forwards.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, LOOPBACK, self.port))
        self._listens.set()
        self._loop.run_forever()
        server.close()
        connections = asyncio.all_tasks(self._loop)
        for connection in connections:
            connection.cancel()
        self._loop.run_until_complete(asyncio.gather(*connections, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        await self._forwards.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self._target_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._forward(reader, far_writer, self._send),
            self._forward(far_reader, writer, self._answer),
        )

    async def _send(self, num_bytes: int) -> None:
        await asyncio.sleep(num_bytes / self._bytes_per_s)
        self.bytes_sent += num_bytes

    async def _answer(self, _num_bytes: int) -> None:
        await asyncio.sleep(self._answer_delay_s)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        take: Callable[[int], Awaitable[None]],
    ) -> None:
        """One direction, until either end closes; ``take``: what a piece of so many bytes takes."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await take(len(data))
                await self._forwards.wait()
                writer.write(data)
                await writer.drain()
        await self._forwards.wait()
        with contextlib.suppress(OSError):
            writer.close()
