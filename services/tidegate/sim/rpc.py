"""gRPC without its transport: the services' own servicers, stubs and codecs, over the simulated network.

A call of which one side is a stream is one message each way; calls of which both are, see ``duplex``. A call whose
deadline passed or whose caller cancelled it is cancelled at the server as gRPC does, unless the cancellation is lost in
the network.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn, TypeVar, cast

import grpc
import msgspec

from tidegate.runtime.authenticated_channel import AuthenticatedChannel, Metadata
from tidegate.runtime.call_credentials import FixedToken, accepting, derived_tokens
from tidegate.runtime.rpc import CallMeter, Registration, register
from tidegate.sim.duplex import DuplexCall
from tidegate.sim.network import Network
from tidegate.sim.process import Process
from tidegate.sim.rpc_errors import AbortError, rpc_error
from tidegate.wire.call_permissions import Role

T = TypeVar("T")
# Every call of the platform has a deadline; a stub without one waits this long.
DEADLINE_MAX_S = 600.0
# The credentials of every simulated run: callers are checked as on a real server.
TOKENS = derived_tokens("simulated")
ACCEPTED = accepting(TOKENS)


class _CallContext:
    """The part of a servicer's context that our servicers use."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise AbortError(code, details)

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return "simulated"


class _Details(msgspec.Struct, frozen=True):
    method: str
    invocation_metadata: Metadata


class Server:
    """A process' gRPC server, as ``runtime.lifecycle`` uses it."""

    def __init__(
        self,
        switchboard: "Switchboard",
        process: Process,
        registrations: Sequence[Registration],
        *,
        meter: CallMeter,
        on_serving: Callable[[bool], None],
        on_defect: Callable[[str], None],
    ) -> None:
        """``on_serving``: called with each answer that its health checks give from then on.

        ``on_defect``: called with what no service may do: serving without listening, or a servicer that raises
        anything but a ``TidegateError``.
        """
        self.process = process
        self.is_listening = False
        self.calls: set[asyncio.Task[None]] = set()
        self._switchboard = switchboard
        self._address = ""
        self._on_serving = on_serving
        self._on_defect = on_defect
        self._handlers: list[grpc.GenericRpcHandler] = []
        for registration in registrations:
            register(
                cast("grpc.aio.Server", self),
                registration,
                ACCEPTED,
                meter=meter,
                on_failure=self._on_failure,
            )

    async def start(self, address: str) -> None:
        """Listen, in place of any server that did before: an address is a name that a new process takes over."""
        self._address = address
        self.is_listening = True
        self._switchboard.listen(address, self)

    async def set_serving(self, *, serving: bool, stands_by: bool = False) -> None:
        """The answer of its health checks. No simulated service stands by."""
        if serving and not self.is_listening:
            self._on_defect(f"{self.process.name} reports that it serves and does not listen")
        self._on_serving(serving)

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new calls, give those in flight ``grace_s``, then cancel them."""
        self.is_listening = False
        if self.calls:
            _, late = await asyncio.wait(self.calls, timeout=grace_s)
            for call in late:
                call.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Called by ``runtime.rpc.register``."""
        self._handlers.extend(handlers)

    async def serve(self, method: str, requests: list[bytes], metadata: Metadata) -> list[bytes]:
        """Answer one call; requests and responses are encoded.

        Raises:
            AbortError: the servicer ended it with a status.
        """
        handler = self._handler(method, metadata)
        context = _CallContext(metadata)
        argument = _iterate(requests) if handler.request_streaming else requests[0]
        behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary
        if handler.response_streaming:
            return [item async for item in behaviour(argument, context)]
        return [await behaviour(argument, context)]

    def stream(self, method: str, requests: AsyncIterator[bytes], metadata: Metadata) -> AsyncIterator[bytes]:
        """Answer a call whose both sides are streams.

        Raises:
            AbortError: the servicer ended it with a status.
        """
        return self._handler(method, metadata).stream_stream(requests, _CallContext(metadata))

    def _handler(self, method: str, metadata: Metadata) -> Any:
        details = cast("grpc.HandlerCallDetails", _Details(method, metadata))
        return next(found for generic in self._handlers if (found := generic.service(details)) is not None)

    def _on_failure(self, method: str, error: Exception) -> None:
        """A call ended by a defect, unless its process was killed meanwhile."""
        if self.process.alive:
            self._on_defect(f"{self.process.name} answered {method} with {error!r}")


class Switchboard:
    """The servers by address, and the calls between processes."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._servers: dict[str, Server] = {}

    def listen(self, address: str, server: Server) -> None:
        """A process serves at an address, in place of an earlier one."""
        self._servers[address] = server

    async def call(
        self,
        caller: Process,
        address: str,
        method: str,
        requests: list[bytes],
        *,
        metadata: Metadata,
        timeout_s: float,
    ) -> list[bytes]:
        """One call from a process to the server that listens at an address when the call arrives.

        Raises:
            grpc.aio.AioRpcError: it failed, at either side.
        """
        call = _SimulatedCall(self._network, caller, address, timeout_s=timeout_s)
        self._network.send(
            lambda: call.arrive(self._servers.get(address), method, requests, metadata),
            between=(caller.name, address),
            on_lost=call.break_off,
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await call.answer
        except TimeoutError as error:
            raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed") from error
        except asyncio.CancelledError:
            self._network.send(call.cancel, between=(caller.name, address))
            raise

    def begin(
        self,
        caller: Process,
        address: str,
        method: str,
        *,
        metadata: Metadata,
        timeout_s: float,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
    ) -> DuplexCall:
        """A call whose both sides are streams, to the server that listens at an address when it arrives."""
        return DuplexCall(
            self._network,
            caller,
            address,
            lambda: self._servers.get(address),
            method,
            metadata=metadata,
            timeout_s=timeout_s,
            serialize=serialize,
            deserialize=deserialize,
        )


class _SimulatedCall:
    """One call in flight."""

    def __init__(self, network: Network, caller: Process, address: str, *, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._network = network
        self._caller = caller
        self._address = address
        self._ends_at_s = self._loop.time() + timeout_s
        self._task: asyncio.Task[None] | None = None
        self.answer: asyncio.Future[list[bytes]] = self._loop.create_future()

    def arrive(self, server: Server | None, method: str, requests: list[bytes], metadata: Metadata) -> None:
        """The call reached its address."""
        if server is None or not server.process.alive or not server.is_listening:
            self._fail(grpc.StatusCode.UNAVAILABLE, f"no server listens at {self._address}")
            return
        self._task = server.process.start(self._serve(server, method, requests, metadata))
        server.calls.add(self._task)
        self._task.add_done_callback(server.calls.discard)
        self._loop.call_at(max(self._ends_at_s, self._loop.time()), self.cancel)
        server.process.on_killed(self.break_off)

    async def _serve(self, server: Server, method: str, requests: list[bytes], metadata: Metadata) -> None:
        try:
            responses = await server.serve(method, requests, metadata)
        except AbortError as error:
            self._fail(error.code, error.details)
        except Exception as error:
            self._fail(grpc.StatusCode.UNKNOWN, repr(error))
        except asyncio.CancelledError:
            if not server.is_listening:
                self._fail(grpc.StatusCode.UNAVAILABLE, f"the server at {self._address} stopped")
            raise
        else:
            self._reply(lambda: self.answer.set_result(responses))
        finally:
            server.process.forget(self.break_off)

    def cancel(self) -> None:
        """The caller no longer waits for the answer."""
        if self._task is not None:
            self._task.cancel()

    def break_off(self) -> None:
        """The connection was lost."""
        self._give(lambda: self._raise(grpc.StatusCode.UNAVAILABLE, "connection reset"))

    def _fail(self, code: grpc.StatusCode, details: str) -> None:
        self._reply(lambda: self._raise(code, details))

    def _raise(self, code: grpc.StatusCode, details: str) -> None:
        self.answer.set_exception(rpc_error(code, details))
        self.answer.exception()  # retrieved here, in case the caller is killed before it does

    def _reply(self, give: Callable[[], None]) -> None:
        self._network.send(
            lambda: self._give(give), between=(self._address, self._caller.name), on_lost=self.break_off
        )

    def _give(self, give: Callable[[], None]) -> None:
        if self._caller.alive and not self.answer.done():
            give()


class Channel:
    """A channel as stubs and clients use it."""

    def __init__(self, switchboard: Switchboard, caller: Process, address: str, *, role: Role) -> None:
        """From ``caller`` to the server at ``address``, with the credential of ``role``."""
        self._switchboard = switchboard
        self._caller = caller
        self._address = address
        self._token = FixedToken(TOKENS[role])

    def as_channel(self) -> grpc.aio.Channel:
        """For code that is typed for gRPC."""
        return AuthenticatedChannel(cast("grpc.aio.Channel", self), self._token)

    async def close(self, _grace_s: float | None = None) -> None:
        """Nothing is open between calls."""

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_options: Any
    ) -> Callable[..., Awaitable[Any]]:
        """One request, one response."""

        async def call(
            request: Any,
            *,
            metadata: Metadata,
            timeout: float = DEADLINE_MAX_S,  # noqa: ASYNC109
        ) -> Any:
            responses = await self._call(method, [request_serializer(request)], metadata, timeout)
            return response_deserializer(responses[0])

        return call

    def unary_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_options: Any
    ) -> Callable[..., AsyncIterator[Any]]:
        """One request, many responses."""

        async def call(
            request: Any,
            *,
            metadata: Metadata,
            timeout: float = DEADLINE_MAX_S,  # noqa: ASYNC109
        ) -> AsyncIterator[Any]:
            for response in await self._call(method, [request_serializer(request)], metadata, timeout):
                yield response_deserializer(response)

        return call

    def stream_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_options: Any
    ) -> Callable[..., Awaitable[Any]]:
        """Many requests, one response."""

        async def call(
            requests: AsyncIterator[Any],
            *,
            metadata: Metadata,
            timeout: float = DEADLINE_MAX_S,  # noqa: ASYNC109
        ) -> Any:
            encoded = [request_serializer(request) async for request in requests]
            responses = await self._call(method, encoded, metadata, timeout)
            return response_deserializer(responses[0])

        return call

    def stream_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_options: Any
    ) -> Callable[..., DuplexCall]:
        """Many requests, many responses."""

        def call(*, metadata: Metadata, timeout: float = DEADLINE_MAX_S) -> DuplexCall:
            return self._switchboard.begin(
                self._caller,
                self._address,
                method,
                metadata=metadata,
                timeout_s=timeout,
                serialize=request_serializer,
                deserialize=response_deserializer,
            )

        return call

    async def _call(
        self, method: str, requests: list[bytes], metadata: Metadata, timeout_s: float
    ) -> list[bytes]:
        return await self._switchboard.call(
            self._caller, self._address, method, requests, metadata=metadata, timeout_s=timeout_s
        )


async def _iterate(items: list[T]) -> AsyncIterator[T]:
    for item in items:
        yield item
