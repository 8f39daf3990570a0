"""gRPC servers and channels: error translation, raw chunks, health and reflection."""

from __future__ import annotations  # gRPC's classes are generic for the type checker only

import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.runtime import tls
from tidegate.wire.subjects import HEADER_TRACE_PARENT

# A chunk is 1 MiB; control messages stay far below.
HEALTH_NAME = "grpc.health.v1.Health"
# Health names for a kubelet: was ever ready, answers at all, is ready now.
HEALTH_STARTUP, HEALTH_LIVENESS, HEALTH_READINESS = "startup", "liveness", "readiness"
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
# Trace context of the call being served, or to be sent with the next call.
trace_context: contextvars.ContextVar[str] = contextvars.ContextVar("trace_context", default="")

log = structlog.get_logger("rpc")

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]
_SERVER_OPTIONS: list[tuple[str, int]] = [
    *_OPTIONS,
    # Two servers on one port would share its calls at random; a taken port must be an error.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
_CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_OPTIONS,
    # A restarted peer is found within a second instead of gRPC's two-minute backoff.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
]


@dataclass(frozen=True, slots=True)
class Registration:
    """One servicer of a server. ``raw_*`` replace codecs by method name (see ``wire.chunks``)."""

    add: Callable[[Any, grpc.aio.Server], None]
    servicer: object
    name: str
    raw_requests: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict[str, Any])
    raw_responses: Mapping[str, Callable[[Any], bytes]] = field(default_factory=dict[str, Any])


class _Capture:
    """A fake server that collects the method handlers which generated code registers."""

    def __init__(self) -> None:
        self.methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def add_generic_rpc_handlers(self, _handlers: Sequence[object]) -> None:
        """Ignored: the same handlers come by name through ``add_registered_method_handlers``."""

    def add_registered_method_handlers(
        self, _service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Keep the handlers by method name."""
        self.methods.update(methods)


class CallMeter(Protocol):
    """Notified of each served call: full method name, duration and status."""

    def __call__(self, method: str, seconds: float, status: str) -> None:
        """Record the call; never raises."""
        ...


def _unmetered(method: str, seconds: float, status: str) -> None:
    """No-op meter."""


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: TidegateError) -> None:
    await context.abort(getattr(grpc.StatusCode, error.status), str(error))


def _enter(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    for key, value in context.invocation_metadata() or ():
        if key == HEADER_TRACE_PARENT:
            trace_context.set(str(value))


def _translated_unary(
    behaviour: Callable[[Any, Any], Awaitable[Any]], method: str, meter: CallMeter
) -> Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        _enter(context)
        status, started_at_s = "OK", time.perf_counter()
        try:
            return await behaviour(request, context)
        except TidegateError as error:
            status = error.status
            await _abort(context, error)
        finally:
            meter(method, time.perf_counter() - started_at_s, status)

    return call


def _translated_stream(
    behaviour: Callable[[Any, Any], AsyncIterator[Any]], method: str, meter: CallMeter
) -> Callable[[Any, grpc.aio.ServicerContext[Any, Any]], AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        _enter(context)
        status, started_at_s = "OK", time.perf_counter()
        try:
            async for response in behaviour(request, context):
                yield response
        except TidegateError as error:
            status = error.status
            await _abort(context, error)
        finally:
            meter(method, time.perf_counter() - started_at_s, status)

    return call


def register(server: grpc.aio.Server, registration: Registration, *, meter: CallMeter = _unmetered) -> None:
    """Add a servicer whose ``TidegateError``s leave as status codes and whose raw methods skip protobuf."""
    capture = _Capture()
    registration.add(registration.servicer, cast("grpc.aio.Server", capture))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method, handler in capture.methods.items():
        request_codec = registration.raw_requests.get(method, handler.request_deserializer)
        full_name = f"{registration.name}/{method}"
        response_codec = registration.raw_responses.get(method, handler.response_serializer)
        make: Any
        if handler.response_streaming:
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            served = cast("Any", handler.stream_stream or handler.unary_stream)
            behaviour: Any = _translated_stream(served, full_name, meter)
        else:
            make = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_unary_rpc_method_handler
            )
            served = cast("Any", handler.stream_unary or handler.unary_unary)
            behaviour = _translated_unary(served, full_name, meter)
        handlers[method] = make(
            behaviour, request_deserializer=request_codec, response_serializer=response_codec
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(registration.name, handlers),))


class RpcServer:
    """A gRPC server with health and reflection; SERVING only while ``set_serving`` allows it.

    Three names of the health service never depend on another service: ``liveness`` is SERVING as long as the server
    answers, ``startup`` from the first time it was ready, ``readiness`` while it is.
    """

    def __init__(self, registrations: Sequence[Registration], *, meter: CallMeter = _unmetered) -> None:
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        # With TLS: health for a kubelet, which has no certificate. It serves nothing else.
        self._health_server: grpc.aio.Server | None = None
        self._health: Any = HealthServicer()  # ships without types
        self._names = [registration.name for registration in registrations]
        for registration in registrations:
            register(self._server, registration, meter=meter)
        cast("Any", health_pb2_grpc).add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            [*self._names, HEALTH_NAME, reflection.SERVICE_NAME], self._server
        )

    async def start(self, address: str) -> None:
        """Listen; where there are certificates with mutual TLS, and in plain text for health on the next port.

        Raises:
            ConfigError: the port is taken, the address is not this machine's, or a certificate cannot be read.
        """
        certificates = tls.identity_folder()
        _listen(self._server, address, tls.server_credentials(certificates) if certificates else None)
        if certificates:
            self._health_server = grpc.aio.server(options=_SERVER_OPTIONS)
            cast("Any", health_pb2_grpc).add_HealthServicer_to_server(self._health, self._health_server)
            host, _, port = address.rpartition(":")
            _listen(self._health_server, f"{host}:{int(port) + 1}", None)
            await self._health_server.start()
        await self.set_serving(serving=False)
        await self._health.set(HEALTH_STARTUP, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._health.set(HEALTH_LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def set_serving(self, *, serving: bool) -> None:
        """Set the answer of health checks, for the server and for each service by name."""
        state = (
            health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", HEALTH_READINESS, *self._names):
            await self._health.set(name, state)
        if serving:
            await self._health.set(HEALTH_STARTUP, state)

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new calls, give those in flight ``grace_s``, then end them."""
        await self._server.stop(grace_s)
        if self._health_server is not None:
            await self._health_server.stop(0.0)


def _listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> None:
    try:
        port = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        port = 0
        reason = str(error)
    else:
        reason = "the port is taken"
    if port == 0:
        raise ConfigError(
            f"Cannot listen on {address}", why=reason, fix="stop what uses the port, or choose another one"
        )


class _TraceMetadata(grpc.aio.UnaryUnaryClientInterceptor):
    """Puts the current trace context into the metadata of calls that belong to a trace."""

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Add ``traceparent`` when a trace is current."""
        trace_parent = trace_context.get()
        if trace_parent:
            metadata = grpc.aio.Metadata(*(client_call_details.metadata or ()))
            metadata.add(HEADER_TRACE_PARENT, trace_parent)
            client_call_details = client_call_details._replace(metadata=metadata)
        return await continuation(client_call_details, request)


def open_channel(address: str) -> grpc.aio.Channel:
    """A persistent channel that finds a restarted peer again within a second; with TLS where there are certificates.

    Raises:
        ConfigError: a certificate cannot be read.
    """
    certificates = tls.identity_folder()
    if certificates:
        return grpc.aio.secure_channel(
            address,
            tls.channel_credentials(certificates),
            options=_CHANNEL_OPTIONS,
            interceptors=[_TraceMetadata()],
        )
    return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS, interceptors=[_TraceMetadata()])


async def ask_health(channel: grpc.aio.Channel, name: str, *, timeout_s: float) -> str:
    """The health of one of a server's names: empty when it is serving, else the reason."""
    stub: Any = health_pb2_grpc.HealthStub(channel)  # ships without types
    try:
        response = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    serving = response.status == health_pb2.HealthCheckResponse.SERVING
    return "" if serving else f"{name or 'the server'} is not serving"
