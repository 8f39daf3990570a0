"""Requests whose answers share one inbox and one timer, on a real nats-server."""

import asyncio

import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from tidegate.runtime.broker_client import BrokerClient
from tidegate.runtime.bus_failures import BusFailures
from tidegate.runtime.replies import SWEEP_S, Replies
from tidegate.runtime.subscribing import subscribe

pytestmark = pytest.mark.integration


async def answer_when(client: BrokerClient, subject: str, released: asyncio.Event) -> None:
    """Answer every request with the request's body, once ``released`` is set."""

    async def receive(message: Msg) -> None:
        await released.wait()
        await message.respond(message.data)

    await subscribe(client, subject, receive, BusFailures())


async def answer_after(client: BrokerClient, subject: str, delay_s: float) -> None:
    """Answer every request with the request's body, late."""
    later: set[asyncio.Task[None]] = set()

    async def answer(message: Msg) -> None:
        await asyncio.sleep(delay_s)
        await message.respond(message.data)

    async def receive(message: Msg) -> None:
        later.add(asyncio.create_task(answer(message)))

    await subscribe(client, subject, receive, BusFailures())


async def test_answers_that_overtake_each_other_find_their_requests(client: BrokerClient) -> None:
    await answer_after(client, "slow", 0.2)
    await answer_after(client, "fast", 0.0)
    replies = Replies(client, BusFailures())
    requests = [
        replies.request(subject, b"%d" % number, headers={}, timeout_s=60.0)
        for number, subject in enumerate(("slow", "fast", "slow", "fast"))
    ]
    assert await asyncio.gather(*requests) == [b"0", b"1", b"2", b"3"]


async def test_request_without_an_answer_ends_at_its_own_deadline(client: BrokerClient) -> None:
    released = asyncio.Event()
    await answer_when(client, "silent", asyncio.Event())
    await answer_when(client, "slow", released)
    replies = Replies(client, BusFailures())
    waiting = asyncio.create_task(replies.request("slow", b"x", headers={}, timeout_s=60.0))
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await replies.request("silent", b"y", headers={}, timeout_s=0.1)
    # The loop's clock counts whole milliseconds, and their difference is a float's.
    assert asyncio.get_running_loop().time() - began_s >= 0.099
    await asyncio.sleep(4 * SWEEP_S)
    assert not waiting.done(), "a request that times out ends no other one"
    released.set()
    assert await waiting == b"x"


async def test_late_answer_reaches_no_other_request(client: BrokerClient) -> None:
    released = asyncio.Event()
    await answer_when(client, "slow", released)
    await answer_after(client, "fast", 0.0)
    replies = Replies(client, BusFailures())
    with pytest.raises(TimeoutError):
        await replies.request("slow", b"late", headers={}, timeout_s=0.05)
    released.set()
    for number in range(8):
        assert await replies.request("fast", b"%d" % number, headers={}, timeout_s=60.0) == b"%d" % number
        await asyncio.sleep(0.1)


async def test_request_without_a_subscriber_fails_at_once(client: BrokerClient) -> None:
    with pytest.raises(NoRespondersError):
        await Replies(client, BusFailures()).request("unanswered", b"x", headers={}, timeout_s=60.0)
