"""A call whose both sides are streams, over the simulated network; the messages of each side keep their order.

Whatever loses a message breaks the call, as a lost connection does: its caller gets UNAVAILABLE and its servicer is
cancelled. What arrives after that is ignored.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import grpc

from tidegate.runtime.authenticated_channel import Metadata
from tidegate.sim.network import Network
from tidegate.sim.process import Process
from tidegate.sim.rpc_errors import AbortError, rpc_error


class StreamServer(Protocol):
    """A process' server, as ``rpc.Server``."""

    process: Process
    is_listening: bool
    calls: set[asyncio.Task[None]]

    def stream(self, method: str, requests: AsyncIterator[bytes], metadata: Metadata) -> AsyncIterator[bytes]:
        """Answer a call whose both sides are streams."""
        ...


class _OneWay:
    """Messages from one process to another, delivered in the order in which they were sent."""

    def __init__(
        self,
        network: Network,
        between: tuple[str, str],
        deliver: Callable[[Any], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._network = network
        self._between = between
        self._deliver = deliver
        self._on_lost = on_lost
        self._num_sent = 0
        self._num_delivered = 0
        self._early: dict[int, Any] = {}

    def send(self, message: Any) -> None:
        number = self._num_sent
        self._num_sent += 1
        self._network.send(
            lambda: self._arrive(number, message), between=self._between, on_lost=self._on_lost
        )

    def _arrive(self, number: int, message: Any) -> None:
        self._early[number] = message
        while self._num_delivered in self._early:
            message = self._early.pop(self._num_delivered)
            self._num_delivered += 1
            self._deliver(message)


class _Inbox:
    """What one side received and did not read yet."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._changed = asyncio.Event()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._changed.set()

    async def get(self) -> Any:
        while not self._items:
            self._changed.clear()
            await self._changed.wait()
        return self._items.popleft()


class _Complete:
    """The servicer ended its side without an error."""


class DuplexCall:
    """The caller's side, with what ``wire.clients`` use of ``grpc.aio.StreamStreamCall``."""

    def __init__(
        self,
        network: Network,
        caller: Process,
        address: str,
        find_server: Callable[[], StreamServer | None],
        method: str,
        *,
        metadata: Metadata,
        timeout_s: float,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
    ) -> None:
        """Begin the call. ``find_server``: who listens at ``address`` now."""
        self._caller = caller
        self._address = address
        self._find_server = find_server
        self._method = method
        self._metadata = metadata
        self._serialize = serialize
        self._deserialize = deserialize
        self._requests = _Inbox()
        self._responses = _Inbox()
        self._serving: asyncio.Task[None] | None = None
        # Why no message is taken or given any more; None while the call is open.
        self._ended: Exception | _Complete | None = None
        ways = (caller.name, address), (address, caller.name)
        self._to_server = _OneWay(network, ways[0], self._arrive, self._break_off)
        self._to_caller = _OneWay(network, ways[1], self._give, self._break_off)
        self._to_server.send(None)  # opens the call
        caller.on_killed(self._hang_up)
        asyncio.get_running_loop().call_later(
            timeout_s, lambda: self._end(rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed"))
        )

    # -- caller ----------------------------------------------------------------------------------------------------

    async def write(self, request: Any) -> None:
        """Send a message.

        Raises:
            grpc.aio.AioRpcError: the call failed.
            asyncio.InvalidStateError: it is complete.
        """
        if isinstance(self._ended, Exception):
            raise self._ended
        if self._ended is not None:
            raise asyncio.InvalidStateError("the call is complete")
        self._to_server.send(self._serialize(request))

    async def read(self) -> Any:
        """The next message, or ``grpc.aio.EOF`` once the servicer has ended its side.

        Raises:
            grpc.aio.AioRpcError: the call failed.
        """
        message = await self._responses.get()
        if not isinstance(message, bytes):
            self._responses.put(message)  # for the next call
            if isinstance(message, Exception):
                raise message
            return grpc.aio.EOF
        return self._deserialize(message)

    def cancel(self) -> bool:
        """End the call; returns whether it was open."""
        is_open = self._ended is None
        if is_open:
            self._end(rpc_error(grpc.StatusCode.CANCELLED, "cancelled by its caller"))
            self._to_server.send(_Complete())
        return is_open

    def _give(self, message: bytes | Exception | _Complete) -> None:
        """A message of the servicer arrived; the last one says how it ended."""
        if isinstance(message, bytes):
            if self._ended is None and self._caller.alive:
                self._responses.put(message)
        else:
            self._end(message)

    def _end(self, why: Exception | _Complete) -> None:
        if self._ended is None:
            self._ended = why
            self._caller.forget(self._hang_up)
            self._responses.put(why)

    # -- connection ------------------------------------------------------------------------------------------------

    def _break_off(self) -> None:
        """The connection was lost; both sides notice."""
        self._end(rpc_error(grpc.StatusCode.UNAVAILABLE, "connection reset"))
        self._stop_serving()

    def _hang_up(self) -> None:
        """The caller was killed."""
        self._to_server.send(_Complete())

    def _stop_serving(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    # -- servicer --------------------------------------------------------------------------------------------------

    def _arrive(self, message: bytes | _Complete | None) -> None:
        """A message of the caller arrived: the first opens the call, and one that is complete ends it."""
        if message is None:
            self._open()
        elif isinstance(message, _Complete):
            self._stop_serving()
        else:
            self._requests.put(message)

    def _open(self) -> None:
        server = self._find_server()
        if server is None or not server.process.alive or not server.is_listening:
            error = rpc_error(grpc.StatusCode.UNAVAILABLE, f"no server listens at {self._address}")
            self._to_caller.send(error)
            return
        self._serving = server.process.start(self._serve(server))
        server.calls.add(self._serving)
        self._serving.add_done_callback(server.calls.discard)
        server.process.on_killed(self._break_off)

    async def _received(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._requests.get()

    async def _serve(self, server: StreamServer) -> None:
        try:
            async for response in server.stream(self._method, self._received(), self._metadata):
                self._to_caller.send(response)
        except AbortError as error:
            self._to_caller.send(rpc_error(error.code, error.details))
        except Exception as error:
            self._to_caller.send(rpc_error(grpc.StatusCode.UNKNOWN, repr(error)))
        except asyncio.CancelledError:
            if not server.is_listening:
                details = f"the server at {self._address} stopped"
                self._to_caller.send(rpc_error(grpc.StatusCode.UNAVAILABLE, details))
            raise
        else:
            self._to_caller.send(_Complete())
        finally:
            server.process.forget(self._break_off)
