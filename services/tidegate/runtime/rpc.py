"""gRPC servers and channels: authenticated callers, error translation, raw chunks, health and reflection."""

from __future__ import annotations  # gRPC's classes are generic for the type checker only

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from tidegate.core.errors import ConfigError, RecordError, TidegateError, UnavailableError
from tidegate.runtime import tls
from tidegate.runtime.authenticated_channel import AuthenticatedChannel, trace_context
from tidegate.runtime.call_authentication import GuardedHandlers
from tidegate.runtime.call_credentials import AcceptedTokens, CallToken
from tidegate.runtime.call_errors import OnFailure, answer_to, details_of
from tidegate.runtime.failure_log import FailureLog
from tidegate.runtime.instances import names_standbys
from tidegate.runtime.renewed_channel import RenewedChannel
from tidegate.wire.subjects import HEADER_TRACE_PARENT

# A chunk is 1 MiB; control messages stay far below.
HEALTH_NAME = "grpc.health.v1.Health"
# Health names for a kubelet: was ever ready, answers at all, is ready now.
HEALTH_STARTUP, HEALTH_LIVENESS, HEALTH_READINESS = "startup", "liveness", "readiness"
# And for callers: is the instance that works, where others stand by.
HEALTH_WORKS = "works"
# Of one question about the health of a service.
HEALTH_CALL_S = 3.0
MESSAGE_BYTES_MAX = 8 * 1024 * 1024

_Options = list[tuple[str, int | str]]
_OPTIONS: _Options = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
]
_KEEPALIVE: _Options = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 5_000)]
_SERVER_OPTIONS: _Options = [
    *_OPTIONS,
    *_KEEPALIVE,
    # Two servers on one port would share its calls at random; a taken port must be an error.
    ("grpc.so_reuseport", 0),
    # A caller that pings more often is cut off.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
]
_RECONNECT: _Options = [
    # A restarted peer, which is back within a second, is found half a second later at most, instead of after gRPC's
    # two minutes. An address without a peer refuses at once, so an attempt costs little.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 400),
    # Despite its name the least time for one attempt to connect, handshakes included. With 1 s a peer that took longer
    # for its first answer, as on a loaded machine, was never connected to.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.enable_retries", 0),
]
_CHANNEL_OPTIONS: _Options = [*_OPTIONS, *_KEEPALIVE, *_RECONNECT]
# Of an address that names several instances: connections to all of them, and calls to the one that works.
_STANDBYS_OPTIONS: _Options = [
    *_OPTIONS,
    *_RECONNECT,
    # One that stands still, or whose node is lost, said last that it works, and would get half of the calls. The wait
    # for an answer to a ping is shorter than that for its heartbeat, after which the next one works. Without the
    # first setting gRPC waits a minute for it (measured, 1.85); the second bounds what TCP waits for.
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.keepalive_time_ms", 2_000),
    # Also while nothing is sent but pings: without this, every third ping waits for minutes.
    ("grpc.http2.max_pings_without_data", 0),
    (
        "grpc.service_config",
        json.dumps(
            {
                "loadBalancingConfig": [{"round_robin": {}}],
                "healthCheckConfig": {"serviceName": HEALTH_WORKS},
            }
        ),
    ),
    # A pod that replaces another one has an address of its own. Names are looked up again after a failure alone.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
]


@dataclass(frozen=True, slots=True)
class Registration:
    """One servicer of a server. ``raw_*`` replace codecs by method name (see ``wire.chunks``).

    ``before_answer``: awaited before each response leaves, what it was made from included.
    """

    add: Callable[[Any, grpc.aio.Server], None]
    servicer: object
    name: str
    raw_requests: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict[str, Any])
    raw_responses: Mapping[str, Callable[[Any], bytes]] = field(default_factory=dict[str, Any])
    before_answer: Callable[[], Awaitable[None]] | None = None


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
    await context.abort(getattr(grpc.StatusCode, error.status), details_of(error))


def _enter(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    for key, value in context.invocation_metadata() or ():
        if key == HEADER_TRACE_PARENT:
            trace_context.set(str(value))


def _decoded(decode: Callable[[bytes], Any], data: bytes, method: str) -> Any:
    try:
        return decode(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"A request of {method} cannot be parsed", why=str(error)) from error


async def _each_decoded(
    decode: Callable[[bytes], Any], requests: AsyncIterator[bytes], method: str
) -> AsyncIterator[Any]:
    async for data in requests:
        yield _decoded(decode, data, method)


@dataclass(frozen=True, slots=True)
class _Method:
    """One method as it is served. It takes and gives bytes: a codec that fails in gRPC's hands is answered UNKNOWN."""

    name: str
    behaviour: Callable[[Any, Any], Any]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    is_request_streamed: bool
    meter: CallMeter
    on_failure: OnFailure
    before_answer: Callable[[], Awaitable[None]] | None

    def _request(self, received: Any) -> Any:
        if self.is_request_streamed:
            return _each_decoded(self.decode, received, self.name)
        return _decoded(self.decode, received, self.name)

    async def _confirmed(self, error: TidegateError) -> TidegateError:
        """The error, which is an answer as well: from outdated state it would mislead the caller.

        UNAVAILABLE says nothing about the state, and ``before_answer`` itself may have raised it.
        """
        if self.before_answer is None or isinstance(error, UnavailableError):
            return error
        try:
            await self.before_answer()
        except TidegateError as refused:
            return refused
        return error

    async def unary(self, received: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """Answer a call that has one response."""
        _enter(context)
        status, started_at_s = "OK", time.perf_counter()
        try:
            response = await self.behaviour(self._request(received), context)
            if self.before_answer is not None:
                await self.before_answer()
            return self.encode(response)
        except grpc.aio.BaseError:
            raise  # the call has ended: no caller waits for an answer
        except Exception as raised:
            error = await self._confirmed(answer_to(raised, self.name, on_failure=self.on_failure))
            status = error.status
            await _abort(context, error)
        finally:
            self.meter(self.name, time.perf_counter() - started_at_s, status)

    async def stream(
        self, received: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        """Answer a call that has a stream of responses."""
        _enter(context)
        status, started_at_s = "OK", time.perf_counter()
        try:
            async for response in self.behaviour(self._request(received), context):
                if self.before_answer is not None:
                    await self.before_answer()
                yield self.encode(response)
        except grpc.aio.BaseError:
            raise  # the call has ended: no caller waits for an answer
        except Exception as raised:
            error = await self._confirmed(answer_to(raised, self.name, on_failure=self.on_failure))
            status = error.status
            await _abort(context, error)
        finally:
            self.meter(self.name, time.perf_counter() - started_at_s, status)


def register(
    server: grpc.aio.Server,
    registration: Registration,
    accepted: AcceptedTokens,
    *,
    meter: CallMeter = _unmetered,
    on_failure: OnFailure,
) -> None:
    """Add a servicer whose errors leave as status codes and whose raw methods skip protobuf.

    Only callers whose token is ``accepted``, and whose role may call a method, reach it. A ``TidegateError`` leaves
    with its own status, a request that cannot be parsed as INVALID_ARGUMENT, and any other exception as INTERNAL,
    after ``on_failure`` was told.
    """
    capture = _Capture()
    registration.add(registration.servicer, cast("grpc.aio.Server", capture))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name, handler in capture.methods.items():
        served: Any = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )
        method = _Method(
            name=f"{registration.name}/{name}",
            behaviour=served,
            decode=cast("Any", registration.raw_requests.get(name, handler.request_deserializer)),
            encode=cast("Any", registration.raw_responses.get(name, handler.response_serializer)),
            is_request_streamed=bool(handler.request_streaming),
            meter=meter,
            on_failure=on_failure,
            before_answer=registration.before_answer,
        )
        make: Any
        if handler.response_streaming:
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            handlers[name] = make(method.stream)
        else:
            make = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_unary_rpc_method_handler
            )
            handlers[name] = make(method.unary)
    guarded = GuardedHandlers(
        registration.name, handlers, accepted, on_refused=lambda method, status: meter(method, 0.0, status)
    )
    server.add_generic_rpc_handlers((guarded,))


class RpcServer:
    """A gRPC server with health and reflection; SERVING only while ``set_serving`` allows it.

    Four names of the health service never depend on another service: ``liveness`` is SERVING as long as the server
    answers, ``startup`` from the first time it was ready, ``readiness`` while it is, and ``works`` while it does not
    stand by either.
    """

    def __init__(
        self,
        registrations: Sequence[Registration],
        accepted: AcceptedTokens,
        *,
        meter: CallMeter = _unmetered,
    ) -> None:
        """``accepted``: recognises callers by their tokens."""
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        # With TLS: health for a kubelet, which has no certificate. It serves nothing else.
        self._health_server: grpc.aio.Server | None = None
        self._health: Any = HealthServicer()  # ships without types
        self._names = [registration.name for registration in registrations]
        on_failure = FailureLog("rpc", event="call_failed", label="method")
        for registration in (*registrations, _reflection_of(self._names)):
            register(self._server, registration, accepted, meter=meter, on_failure=on_failure)
        cast("Any", health_pb2_grpc).add_HealthServicer_to_server(self._health, self._server)

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

    async def set_serving(self, *, serving: bool, stands_by: bool = False) -> None:
        """Set the answer of health checks, for the server and for each service by name.

        ``stands_by``: it is healthy, and none of its callers is to call it.
        """
        state = (
            health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", HEALTH_READINESS, *self._names):
            await self._health.set(name, state)
        if serving:
            await self._health.set(HEALTH_STARTUP, state)
        await self._health.set(
            HEALTH_WORKS, health_pb2.HealthCheckResponse.NOT_SERVING if stands_by else state
        )

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new calls, give those in flight ``grace_s``, then end them."""
        await self._server.stop(grace_s)
        if self._health_server is not None:
            await self._health_server.stop(0.0)


def _reflection_of(names: Sequence[str]) -> Registration:
    """The descriptions of a server's services, for operators' tools."""
    return Registration(
        add=cast("Any", reflection_pb2_grpc).add_ServerReflectionServicer_to_server,
        servicer=cast("Any", ReflectionServicer)([*names, HEALTH_NAME, reflection.SERVICE_NAME]),
        name=reflection.SERVICE_NAME,
    )


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


def open_channel(address: str, token: CallToken | None) -> grpc.aio.Channel:
    """A persistent channel that finds a restarted peer again within a second; with TLS where there are certificates.

    Renewed certificates are used without a restart (``runtime.renewed_channel``). Where the address names several
    instances, of which one works (``runtime.instances``), calls go to that one.

    ``token``: the caller's credential, sent with every call; None to ask for health only.

    Raises:
        ConfigError: a certificate cannot be read.
    """
    certificates = tls.identity_folder()
    options = _STANDBYS_OPTIONS if names_standbys(address) else _CHANNEL_OPTIONS
    channel: grpc.aio.Channel
    if certificates:
        channel = RenewedChannel(
            lambda credentials: grpc.aio.secure_channel(address, credentials, options=options),
            tls.IdentityFolder(certificates),
        )
    else:
        channel = grpc.aio.insecure_channel(address, options=options)
    return AuthenticatedChannel(channel, token)


async def ask_health(channel: grpc.aio.Channel, name: str, *, timeout_s: float) -> str:
    """The health of one of a server's names: empty when it is serving, else the reason."""
    stub: Any = health_pb2_grpc.HealthStub(channel)  # ships without types
    try:
        response = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    serving = response.status == health_pb2.HealthCheckResponse.SERVING
    return "" if serving else f"{name or 'the server'} is not serving"


async def await_health(address: str, name: str, *, deadline_s: float, period_s: float) -> str:
    """``ask_health`` until it is serving or, by the monotonic clock, ``deadline_s``; the last answer."""
    answer = "not asked yet"
    channel = open_channel(address, None)
    try:
        while answer and time.monotonic() < deadline_s:
            answer = await ask_health(channel, name, timeout_s=HEALTH_CALL_S)
            await asyncio.sleep(period_s if answer else 0.0)
    finally:
        await channel.close()
    return answer
