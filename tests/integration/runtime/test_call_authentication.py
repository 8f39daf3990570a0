"""Every method of every service, called by every role over a real socket: only those in the table reach it."""

import importlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc
import pytest
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.structure.test_call_permissions import services_of_protos
from tests.support.broker import free_port
from tests.support.call_credentials import accepted, token_of
from tests.support.calls import path_of, status_of
from tidegate.catalogue import process
from tidegate.core.errors import PermissionDeniedError, UnauthenticatedError
from tidegate.runtime import call_authentication
from tidegate.runtime.call_credentials import CallToken, FixedToken, derive_token
from tidegate.runtime.call_refusals import counting_refusals
from tidegate.runtime.rpc import Registration, RpcServer, open_channel
from tidegate.runtime.stats_board import StatsBoard
from tidegate.v1 import learner_service_pb2 as pb
from tidegate.v1.learner_service_pb2_grpc import LearnerServiceStub
from tidegate.wire.call_permissions import ROLES, callers_of
from tidegate.wire.clients.remote import remote_errors

pytestmark = pytest.mark.integration

TIMEOUT_S = 60.0
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
METHODS: list[MethodDescriptor] = [method for service in services_of_protos() for method in service.methods]


class Fake:
    """A servicer of any service that notes which of its methods were reached."""

    def __init__(self, service: ServiceDescriptor, reached: list[str]) -> None:
        for method in service.methods:
            setattr(self, method.name, self._handler(method, reached))

    def _handler(self, method: MethodDescriptor, reached: list[str]) -> Callable[..., Any]:
        response: Any = message_of(method, "output_type")

        async def receive(request: Any) -> None:
            reached.append(path_of(method))
            if method.client_streaming:
                async for _ in request:
                    pass

        async def once(request: Any, _context: object) -> object:
            await receive(request)
            return response()

        async def stream(request: Any, _context: object) -> AsyncIterator[object]:
            await receive(request)
            yield response()

        return stream if method.server_streaming else once


def message_of(method: MethodDescriptor, side: str) -> Any:
    return getattr(method, side)._concrete_class


def adder_of(service: ServiceDescriptor) -> Callable[..., None]:
    module = service.file.name.removesuffix(".proto").replace("/", ".")
    for name in (f"tidegate.v1.{module.rpartition('.')[2]}_pb2_grpc", f"{module}_pb2_grpc"):
        try:
            return getattr(importlib.import_module(name), f"add_{service.name}Servicer_to_server")
        except ModuleNotFoundError:
            continue
    raise AssertionError(f"no generated code of {service.full_name}")


def uncounted(method: str, seconds: float, status: str) -> None:
    """No-op meter."""


class Platform:
    """One server with every service of the protos."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.decoded: list[bytes] = []
        # By the status that they ended with.
        self.num_calls: Counter[grpc.StatusCode] = Counter()
        self.stats = StatsBoard(service="learner", instance="learner", started_at_s=0.0)
        self.address = f"127.0.0.1:{free_port()}"
        services = list(services_of_protos())
        registrations = [
            Registration(
                add=adder_of(service),
                servicer=Fake(service, self.reached),
                name=service.full_name,
                raw_requests={method.name: self._decoder(method) for method in service.methods},
            )
            for service in services
        ]
        meter = counting_refusals(uncounted, self.stats)
        self.server = RpcServer(registrations, accepted(), meter=meter)

    def _decoder(self, method: MethodDescriptor) -> Callable[[bytes], object]:
        def decode(data: bytes) -> object:
            self.decoded.append(data)
            return message_of(method, "input_type").FromString(data)

        return decode

    async def call(self, method: MethodDescriptor, token: CallToken | None) -> grpc.StatusCode:
        """Make one call of whatever kind, and return its status; made again where the client loses it."""
        channel = open_channel(self.address, token)
        request = message_of(method, "input_type")().SerializeToString()
        num_calls, status = 0, None
        try:
            while status is None:
                num_calls += 1
                status = await status_of(channel, method, [request], timeout_s=TIMEOUT_S)
        finally:
            await channel.close()
        self.num_calls[status] += num_calls
        return status

    def refused(self, reason: str) -> float:
        return self.stats.value(process.CALLS_REFUSED_BECAUSE.member(reason))


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    platform = Platform()
    await platform.server.start(platform.address)
    yield platform
    await platform.server.stop(grace_s=0)


@pytest.mark.parametrize("method", METHODS, ids=path_of)
async def test_method_is_reached_by_its_callers_only(platform: Platform, method: MethodDescriptor) -> None:
    callers = callers_of(method.containing_service.full_name, method.name)
    strangers = [None, FixedToken(derive_token("another run", "operator")), FixedToken("")]
    for token in strangers:
        status = await platform.call(method, token)
        assert status is (grpc.StatusCode.OK if callers is None else UNAUTHENTICATED)
    for role in ROLES:
        allowed = callers is None or role in callers
        assert await platform.call(method, token_of(role)) is (grpc.StatusCode.OK if allowed else DENIED), (
            role
        )
    num_allowed = len(ROLES) + len(strangers) if callers is None else len(callers)
    assert platform.reached == [path_of(method)] * num_allowed
    assert len(platform.decoded) <= num_allowed, "a refused call's message was decoded"
    assert platform.refused("unauthenticated") == platform.num_calls[UNAUTHENTICATED]
    assert platform.refused("permission_denied") == platform.num_calls[DENIED]


async def ask_learner(platform: Platform, token: CallToken | None) -> None:
    channel = open_channel(platform.address, token)
    try:
        with remote_errors("learner"):
            await LearnerServiceStub(channel).Checkpoint(pb.CheckpointRequest(), timeout=TIMEOUT_S)
    finally:
        await channel.close()


async def test_refusal_says_what_was_called_why_not_and_what_to_do(platform: Platform) -> None:
    with pytest.raises(
        UnauthenticatedError, match=r"Checkpoint was called without a credential\. the call has no"
    ):
        await ask_learner(platform, None)
    with pytest.raises(
        UnauthenticatedError, match=r"does not accept.*another run.*read the credential again"
    ):
        await ask_learner(platform, FixedToken("guess"))
    with pytest.raises(
        PermissionDeniedError, match=r"called as actor.*only admission and operator may\. use the credential"
    ):
        await ask_learner(platform, token_of("actor"))


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", "Basic abc"),),
        (("authorization", ""),),
        (("authorization", "Bearer"),),
        (("token", "Bearer x"),),
        (("authorization", "Bearer guess"), ("authorization", f"Bearer {token_of('operator').current()}")),
    ],
)
async def test_metadata_of_another_form_is_no_credential(
    platform: Platform, metadata: tuple[tuple[str, str], ...]
) -> None:
    async with grpc.aio.insecure_channel(platform.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await LearnerServiceStub(channel).Checkpoint(
                pb.CheckpointRequest(), metadata=metadata, timeout=TIMEOUT_S
            )
    assert refused.value.code() is UNAUTHENTICATED
    assert platform.reached == []


async def test_silent_stream_of_a_stranger_is_ended_at_once(platform: Platform) -> None:
    """It is refused before its first message, which may never come."""
    async with grpc.aio.insecure_channel(platform.address) as channel:
        begin = cast("Any", channel).stream_unary("/tidegate.v1.TrajectoryStoreService/UploadPayload")
        call = begin(timeout=TIMEOUT_S)
        assert await call.code() is UNAUTHENTICATED


async def test_services_are_described_to_operators_only(platform: Platform) -> None:
    def describe(channel: Any) -> Any:
        stub = cast("Any", reflection_pb2_grpc).ServerReflectionStub(channel)  # ships without types
        return stub.ServerReflectionInfo(timeout=TIMEOUT_S)

    async with open_channel(platform.address, token_of("operator")) as channel:
        call = describe(channel)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = (await call.read()).list_services_response
        assert "tidegate.v1.LearnerService" in [service.name for service in answer.service]
    for stranger, status in ((None, UNAUTHENTICATED), (token_of("actor"), DENIED)):
        async with open_channel(platform.address, stranger) as channel:
            # Without a message: one that is sent after the refusal fails by INTERNAL in gRPC's client.
            assert await describe(channel).code() is status


async def test_health_is_answered_without_a_credential(platform: Platform) -> None:
    await platform.server.set_serving(serving=True)
    async with grpc.aio.insecure_channel(platform.address) as channel:
        stub = cast("Any", health_pb2_grpc).HealthStub(channel)  # ships without types
        answer = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=TIMEOUT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_refusals_are_logged_once_in_a_while_with_the_number_since(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    with structlog.testing.capture_logs() as lines:
        monkeypatch.setattr(call_authentication, "log", structlog.get_logger("rpc"))
        for _ in range(5):
            with pytest.raises(UnauthenticatedError):
                await ask_learner(platform, None)
        monkeypatch.setattr(call_authentication, "LOG_PERIOD_S", 0.0)
        with pytest.raises(UnauthenticatedError):
            await ask_learner(platform, None)
    found = [
        (line["method"], line["refused_since_last_line"]) for line in lines if line["event"] == "call_refused"
    ]
    assert found == [
        ("tidegate.v1.LearnerService/Checkpoint", 0),
        ("tidegate.v1.LearnerService/Checkpoint", 4),
    ]
    assert all(line["peer"].startswith("ipv4:127.0.0.1") for line in lines if line["event"] == "call_refused")
    assert platform.refused("unauthenticated") == 6
