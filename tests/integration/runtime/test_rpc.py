"""Servers and channels on loopback: errors keep their class, raw chunks keep protobuf's wire format."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from tests.support.broker import free_port
from tests.support.call_credentials import accepted, permitted_channel
from tests.support.proxy import Proxy
from tidegate.core import errors
from tidegate.runtime.authenticated_channel import trace_context
from tidegate.runtime.rpc import (
    HEALTH_READINESS,
    HEALTH_WORKS,
    MESSAGE_BYTES_MAX,
    Registration,
    RpcServer,
    ask_health,
)
from tidegate.v1 import weight_distribution_service_pb2 as pb
from tidegate.v1.weight_distribution_service_pb2_grpc import (
    WeightDistributionServiceStub,
    add_WeightDistributionServiceServicer_to_server,
)
from tidegate.wire.chunks import chunk_deserializer, chunk_serializer
from tidegate.wire.clients.remote import remote_errors

pytestmark = pytest.mark.integration

NAME = "tidegate.v1.WeightDistributionService"
CHUNKS = [bytes([number]) * (1 + 70_000 * number) for number in range(4)]


class Servicer:
    """Answers with raw chunks, records what it got, fails on demand."""

    def __init__(self) -> None:
        self.received: list[object] = []
        self.failure: Exception | None = None
        self.head: object = pb.GetHeadResponse()
        self.seen_trace = ""

    async def GetHead(self, request: object, context: object) -> pb.GetHeadResponse:
        self.seen_trace = trace_context.get()
        if self.failure is not None:
            raise self.failure
        return cast("pb.GetHeadResponse", self.head)

    async def PullPolicy(self, request: pb.PullPolicyRequest, context: object) -> AsyncIterator[bytes]:
        for chunk in CHUNKS[request.offset :]:
            yield chunk
        if self.failure is not None:
            raise self.failure

    async def PublishPolicy(
        self, requests: AsyncIterator[pb.PublishPolicyRequest | memoryview], context: object
    ) -> pb.PublishPolicyResponse:
        self.received = [item.tobytes() if isinstance(item, memoryview) else item async for item in requests]
        return pb.PublishPolicyResponse()


class Served:
    """A running server and a channel to it."""

    def __init__(self) -> None:
        self.servicer = Servicer()
        self.address = f"127.0.0.1:{free_port()}"
        self.answers: list[tuple[str, str]] = []
        self.asked = 0
        self.refusal: errors.TidegateError | None = None
        self.server = RpcServer(
            [
                Registration(
                    add=add_WeightDistributionServiceServicer_to_server,
                    servicer=self.servicer,
                    name=NAME,
                    raw_requests={"PublishPolicy": chunk_deserializer(pb.PublishPolicyRequest, 2)},
                    raw_responses={"PullPolicy": chunk_serializer(1)},
                    before_answer=self.before_answer,
                )
            ],
            accepted(),
            meter=self.meter,
        )
        self.channel = permitted_channel(self.address)

    async def before_answer(self) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal

    def meter(self, method: str, seconds: float, status: str) -> None:
        assert seconds >= 0
        self.answers.append((method, status))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.server.start(served.address)
    yield served
    await served.channel.close()
    await served.server.stop(grace_s=0)


@pytest.mark.parametrize(
    "kind",
    [
        errors.RecordError,
        errors.NotFoundError,
        errors.ConflictError,
        errors.BackpressureError,
        errors.PayloadTooLargeError,
        errors.StaleFolderError,
        errors.CorruptionError,
        errors.UnavailableError,
    ],
)
async def test_an_error_arrives_as_the_class_it_left_as(
    served: Served, kind: type[errors.TidegateError]
) -> None:
    served.servicer.failure = kind("It broke", fix="repair it")
    with pytest.raises(kind, match=r"weights: It broke\. repair it") as caught, remote_errors("weights"):
        await WeightDistributionServiceStub(served.channel).GetHead(pb.GetHeadRequest())
    assert caught.value.retryable == kind.retryable


@pytest.mark.parametrize("failure", [None, errors.NotFoundError("It is gone")], ids=["answer", "error"])
async def test_what_may_be_outdated_leaves_neither_as_an_answer_nor_as_an_error(
    served: Served, failure: errors.TidegateError | None
) -> None:
    served.servicer.failure, served.refusal = failure, errors.UnavailableError("Another one answers")
    with pytest.raises(errors.UnavailableError, match="Another one answers"), remote_errors("weights"):
        await WeightDistributionServiceStub(served.channel).GetHead(pb.GetHeadRequest())
    assert served.asked == 1, "which may take long"


async def test_an_error_in_a_stream_comes_after_what_was_streamed(served: Served) -> None:
    served.servicer.failure = errors.NotFoundError("It is gone")
    received: list[bytes] = []

    async def pull() -> None:
        with remote_errors("weights"):
            async for message in WeightDistributionServiceStub(served.channel).PullPolicy(
                pb.PullPolicyRequest()
            ):
                received.append(message.chunk)

    with pytest.raises(errors.NotFoundError):
        await pull()
    assert received == CHUNKS


async def test_message_that_is_too_large_is_not_sent_again(served: Served) -> None:
    request = pb.PullPolicyRequest(tensors=["x" * MESSAGE_BYTES_MAX])

    async def pull() -> None:
        with remote_errors("weights"):
            async for _ in WeightDistributionServiceStub(served.channel).PullPolicy(request):
                pass

    with pytest.raises(errors.PayloadTooLargeError, match="larger than max") as caught:
        await pull()
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("details", "retryable"),
    [("Internal error from Core.", True), ("Exception deserializing response!", False)],
)
def test_message_sent_into_an_ended_call_is_retryable(details: str, *, retryable: bool) -> None:
    """One of sixty uploads into a server that stops ends so; the others report it as unavailable."""
    metadata = grpc.aio.Metadata()
    with pytest.raises(errors.TidegateError, match="weights: ") as caught, remote_errors("weights"):
        raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, metadata, metadata, details=details)
    assert caught.value.retryable is retryable


@pytest.mark.parametrize("method", ["GetHead", "PullPolicy", "PublishPolicy"])
async def test_bytes_that_are_no_message_are_refused_as_invalid(served: Served, method: str) -> None:
    status, details = await ended(served, method, b"\xff\xff\xff")
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be parsed" in details
    await served.server.stop(grace_s=60.0)
    assert served.answers == [(f"{NAME}/{method}", "INVALID_ARGUMENT")]


@pytest.mark.parametrize("method", ["GetHead", "PullPolicy"])
async def test_unexpected_exception_is_internal_and_logged_once_with_its_traceback(
    served: Served, method: str
) -> None:
    served.servicer.failure = ValueError("a secret of the service")
    with capture_logs() as lines:
        for _ in range(3):
            status, details = await ended(served, method, b"")
            assert (status, details) == (grpc.StatusCode.INTERNAL, f"{NAME}/{method} failed by a ValueError")
    assert [(line["event"], line["method"], line["log_level"]) for line in lines] == [
        ("call_failed", f"{NAME}/{method}", "error")
    ]
    assert lines[0]["exc_info"] is served.servicer.failure
    await served.server.stop(grace_s=60.0)
    assert served.answers == 3 * [(f"{NAME}/{method}", "INTERNAL")]


async def test_answer_that_cannot_be_encoded_is_internal(served: Served) -> None:
    served.servicer.head = "no message"
    status, _ = await ended(served, "GetHead", b"")
    assert status == grpc.StatusCode.INTERNAL
    await served.server.stop(grace_s=60.0)
    assert served.answers == [(f"{NAME}/GetHead", "INTERNAL")]


async def ended(served: Served, method: str, request: bytes) -> tuple[grpc.StatusCode, str]:
    """The status of a call with these bytes, and the first part of its sentence."""
    path = f"/{NAME}/{method}"
    channel: Any = served.channel

    async def requests() -> AsyncIterator[bytes]:
        yield request
        # A client that ends its stream when the call has just ended loses the server's status (grpc/grpc#36066).
        await asyncio.Event().wait()

    try:
        if method == "PullPolicy":
            async for _ in channel.unary_stream(path)(request):
                pass
        elif method == "PublishPolicy":
            await channel.stream_unary(path)(requests())
        else:
            await channel.unary_unary(path)(request)
    except grpc.aio.AioRpcError as error:
        return error.code(), (error.details() or "").partition(". ")[0]
    return grpc.StatusCode.OK, ""


async def test_raw_chunks_are_ordinary_messages_to_a_client_that_knows_only_protobuf(served: Served) -> None:
    stub = WeightDistributionServiceStub(served.channel)
    assert [message.chunk async for message in stub.PullPolicy(pb.PullPolicyRequest(offset=1))] == CHUNKS[1:]
    head = pb.PublishPolicyRequest()
    head.announcement.version.lineage = "0-a"

    async def requests() -> AsyncIterator[pb.PublishPolicyRequest]:
        yield head
        for chunk in CHUNKS:
            yield pb.PublishPolicyRequest(chunk=chunk)

    await stub.PublishPolicy(requests())
    assert served.servicer.received == [head, *CHUNKS]


async def test_a_raw_client_and_a_raw_server_agree(served: Served) -> None:
    pull: Any = served.channel.unary_stream(
        f"/{NAME}/PullPolicy",
        request_serializer=pb.PullPolicyRequest.SerializeToString,
        response_deserializer=chunk_deserializer(pb.PullPolicyResponse, 1),
    )
    assert [bytes(chunk) async for chunk in pull(pb.PullPolicyRequest())] == CHUNKS


async def test_a_taken_port_is_an_error_that_names_the_address(served: Served) -> None:
    with pytest.raises(errors.ConfigError, match=served.address):
        await RpcServer([], accepted()).start(served.address)


async def test_health_is_serving_only_once_set(served: Served) -> None:
    check = cast("Any", health_pb2_grpc).HealthStub(served.channel)  # ships without types

    async def status() -> int:
        return (await check.Check(health_pb2.HealthCheckRequest(service=NAME))).status

    assert await status() == health_pb2.HealthCheckResponse.NOT_SERVING
    await served.server.set_serving(serving=True)
    assert await status() == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_lists_the_service(served: Served) -> None:
    stub = cast("Any", reflection_pb2_grpc).ServerReflectionStub(served.channel)  # ships without types
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    response = await anext(aiter(call))
    assert NAME in [service.name for service in response.list_services_response.service]


async def test_trace_context_travels_in_metadata(served: Served) -> None:
    trace_context.set("00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    await WeightDistributionServiceStub(served.channel).GetHead(pb.GetHeadRequest())
    assert served.servicer.seen_trace == trace_context.get()


async def test_a_channel_finds_a_restarted_server_again(served: Served) -> None:
    stub = WeightDistributionServiceStub(served.channel)
    await stub.GetHead(pb.GetHeadRequest())
    await served.server.stop(grace_s=0)
    with pytest.raises(errors.UnavailableError), remote_errors("weights"):
        await stub.GetHead(pb.GetHeadRequest())
    again = Served()
    await again.server.start(served.address)
    async with asyncio.timeout(60.0):
        while True:
            try:
                await stub.GetHead(pb.GetHeadRequest(), timeout=1.0)
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
    await again.server.stop(grace_s=0)


@pytest.fixture
async def second(served: Served) -> AsyncIterator[Served]:
    """It stands by, and the first one works."""
    second = Served()
    await second.server.start(second.address)
    await served.server.set_serving(serving=True)
    await second.server.set_serving(serving=True, stands_by=True)
    yield second
    await second.channel.close()
    await second.server.stop(grace_s=0)


async def test_calls_go_to_the_instance_that_works_and_then_to_the_one_that_follows_it(
    served: Served, second: Served
) -> None:
    channel = permitted_channel(f"ipv4:{served.address},{second.address}")
    stub = WeightDistributionServiceStub(channel)
    for _ in range(5):
        await stub.GetHead(pb.GetHeadRequest(), wait_for_ready=True, timeout=60.0)
    assert (len(served.answers), len(second.answers)) == (5, 0)
    await served.server.stop(grace_s=0)
    with pytest.raises(errors.UnavailableError), remote_errors("weights"):
        await stub.GetHead(pb.GetHeadRequest())
    await second.server.set_serving(serving=True)
    await stub.GetHead(pb.GetHeadRequest(), wait_for_ready=True, timeout=60.0)
    assert len(second.answers) == 1
    await channel.close()


async def test_instance_that_answers_nothing_any_more_is_left_for_the_one_that_follows_it(
    served: Served, second: Served
) -> None:
    """It said last that it works, and closes no connection, as where its process stands still."""
    proxy = Proxy(int(served.address.rpartition(":")[2]))
    proxy.start()
    channel = permitted_channel(f"ipv4:127.0.0.1:{proxy.port},{second.address}")
    stub = WeightDistributionServiceStub(channel)
    await stub.GetHead(pb.GetHeadRequest(), wait_for_ready=True, timeout=60.0)
    with proxy.stalled():
        await second.server.set_serving(serving=True)
        waiting = [stub.GetHead(pb.GetHeadRequest(), timeout=60.0) for _ in range(4)]
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        lost = [each for each in ended if isinstance(each, grpc.aio.AioRpcError)]
        assert {each.code() for each in lost} <= {grpc.StatusCode.UNAVAILABLE}, "long before their deadline"
        for _ in range(4):
            await stub.GetHead(pb.GetHeadRequest(), timeout=60.0)
    assert len(second.answers) == 8 - len(lost)
    await channel.close()
    await asyncio.to_thread(proxy.close)


async def test_instance_that_stands_by_is_healthy(served: Served) -> None:
    await served.server.set_serving(serving=True, stands_by=True)
    answers = [await ask_health(served.channel, name, timeout_s=10.0) for name in ("", HEALTH_READINESS)]
    assert answers == ["", ""]
    assert await ask_health(served.channel, HEALTH_WORKS, timeout_s=10.0) != ""


async def test_peer_whose_first_answer_takes_longer_than_the_backoff_is_connected_to(served: Served) -> None:
    proxy = Proxy(int(served.address.rpartition(":")[2]), answer_delay_s=1.5)
    proxy.start()
    try:
        channel = permitted_channel(f"127.0.0.1:{proxy.port}")
        try:
            stub = WeightDistributionServiceStub(channel)
            request = pb.GetHeadRequest()
            assert await stub.GetHead(request, wait_for_ready=True, timeout=60.0) == pb.GetHeadResponse()
        finally:
            await channel.close()
    finally:
        proxy.close()
