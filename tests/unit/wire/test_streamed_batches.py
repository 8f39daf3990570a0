"""A streamed batch arrives however long it takes, while its messages keep coming."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from tidegate.core.errors import DeadlineError
from tidegate.sim.virtual_loop import VirtualLoop
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.wire.clients.remote import DEADLINE_S
from tidegate.wire.clients.streamed_batches import received

CHUNK = b"c" * 8
Message = pb.LeaseBatchResponse | memoryview


async def sent(
    _request: object,
    *,
    timeout: float,  # noqa: ASYNC109  # as gRPC names it
    pauses_s: tuple[float, ...],
) -> AsyncIterator[Message]:
    """A head at once, and a chunk after each pause."""
    assert timeout > sum(pauses_s)
    yield pb.LeaseBatchResponse(batch_id="b", chunk=CHUNK)
    for pause_s in pauses_s:
        await asyncio.sleep(pause_s)
        yield memoryview(CHUNK)


def receive(call: Callable[..., AsyncIterator[Message]]) -> tuple[Message | None, bytes]:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(received(call, None, max_wait_s=0.0))
    finally:
        loop.close()


def test_deadline_is_of_each_message_and_not_of_the_batch() -> None:
    head, data = receive(partial(sent, pauses_s=(0.9 * DEADLINE_S,) * 4))
    assert isinstance(head, pb.LeaseBatchResponse)
    assert data == 5 * CHUNK


def test_batch_that_falls_silent_is_asked_for_again() -> None:
    with pytest.raises(DeadlineError, match="silent for 10 s"):
        receive(partial(sent, pauses_s=(0.1, 2 * DEADLINE_S)))
