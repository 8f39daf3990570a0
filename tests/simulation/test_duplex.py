"""Calls whose both sides are streams: order, and what either side sees when the other, or the connection, is gone."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import pytest

from tidegate.runtime.authenticated_channel import Metadata
from tidegate.sim.duplex import DuplexCall
from tidegate.sim.network import HEALTHY, Network, NetworkConditions
from tidegate.sim.process import Process
from tidegate.sim.rpc_errors import AbortError
from tidegate.sim.virtual_loop import VirtualLoop

pytestmark = pytest.mark.simulation

# Messages overtake each other.
JITTER = NetworkConditions(jitter_s=1.0)
COUNT = 20


class EchoServer:
    """Answers each message with itself; ``end`` and ``refuse`` are orders. ``cancelled``: its calls that were."""

    def __init__(self) -> None:
        self.process = Process("server")
        self.is_listening = True
        self.calls: set[asyncio.Task[None]] = set()
        self.cancelled = 0

    async def stream(
        self, method: str, requests: AsyncIterator[bytes], metadata: Metadata
    ) -> AsyncIterator[bytes]:
        del method, metadata
        try:
            async for request in requests:
                if request == b"end":
                    return
                if request == b"refuse":
                    raise AbortError(grpc.StatusCode.INVALID_ARGUMENT, "refused")
                yield request
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Line:
    """A network, a server, and one call to it."""

    def __init__(self, conditions: NetworkConditions = HEALTHY) -> None:
        self.network = Network(random.Random(0))
        self.network.conditions = conditions
        self.server = EchoServer()
        self.caller = Process("caller")
        self.call = DuplexCall(
            self.network,
            self.caller,
            "server",
            lambda: self.server,
            "/service/Method",
            metadata=(),
            timeout_s=600.0,
            serialize=str.encode,
            deserialize=bytes.decode,
        )


def run(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(case())
    finally:
        loop.close()


async def failure(call: DuplexCall) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return caught.value.code(), caught.value.details()


def test_messages_of_both_sides_keep_their_order() -> None:
    async def case() -> None:
        line = Line(JITTER)
        for number in range(COUNT):
            await line.call.write(str(number))
        assert [await line.call.read() for _ in range(COUNT)] == [str(number) for number in range(COUNT)]
        assert line.call.cancel()
        assert not line.call.cancel()
        await asyncio.sleep(5.0)
        assert line.server.cancelled == 1

    run(case)


def test_servicer_that_returns_completes_the_call_after_its_answers() -> None:
    async def case() -> None:
        line = Line(JITTER)
        await line.call.write("last")
        await line.call.write("end")
        assert await line.call.read() == "last"
        assert await line.call.read() is grpc.aio.EOF
        assert await line.call.read() is grpc.aio.EOF
        with pytest.raises(asyncio.InvalidStateError):
            await line.call.write("too late")

    run(case)


def test_refusal_reaches_the_caller_with_its_status() -> None:
    async def case() -> None:
        line = Line()
        await line.call.write("refuse")
        assert await failure(line.call) == (grpc.StatusCode.INVALID_ARGUMENT, "refused")

    run(case)


@pytest.mark.parametrize("listens", [False, True])
def test_call_to_a_server_that_does_not_listen_or_is_killed_is_unavailable(*, listens: bool) -> None:
    async def case() -> None:
        line = Line()
        line.server.is_listening = listens
        if listens:
            await line.call.write("1")
            assert await line.call.read() == "1"
            line.server.process.kill()
        code, _ = await failure(line.call)
        assert code is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError):
            await line.call.write("2")

    run(case)


def test_lost_message_breaks_the_call_on_both_sides() -> None:
    async def case() -> None:
        line = Line()
        await line.call.write("1")
        assert await line.call.read() == "1"
        line.network.isolated = frozenset({"caller"})
        await line.call.write("2")
        code, _ = await failure(line.call)
        assert code is grpc.StatusCode.UNAVAILABLE
        await asyncio.sleep(5.0)
        assert line.server.cancelled == 1

    run(case)


def test_servicer_of_a_killed_caller_is_cancelled() -> None:
    async def case() -> None:
        line = Line()
        await line.call.write("1")
        assert await line.call.read() == "1"
        line.caller.kill()
        await asyncio.sleep(5.0)
        assert line.server.cancelled == 1

    run(case)


def test_call_ends_at_its_deadline() -> None:
    async def case() -> None:
        line = Line()
        code, _ = await failure(line.call)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED

    run(case)
