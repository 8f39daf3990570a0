"""Requests of a pull consumer to a broker that refuses them, as one does that restarts."""

import asyncio
from collections.abc import Callable
from typing import cast

from tidegate.runtime.broker_client import BrokerClient, Receive, Received
from tidegate.runtime.bus_failures import BusFailures
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.consumer import PAUSE_S, WAIT_MAX_S, Consumer
from tidegate.wire.subjects import DurableName

WAIT_S = 0.3


class FakeClient:
    """Answers each request with one status as soon as the event loop runs again; never where that is empty."""

    is_connected = True

    def __init__(self, status: str) -> None:
        self.num_requests = 0
        self.on_request: Callable[[], None] = lambda: None
        self._status = status
        self._answers = set[asyncio.Task[None]]()

    def new_inbox(self) -> str:
        return "_INBOX.a"

    async def follow(self, subject: str, receive: Receive, failures: BusFailures) -> object:
        del subject, failures
        self._receive = receive
        return None

    async def send(self, subject: str, data: bytes, *, reply: str) -> None:
        del subject, data
        self.num_requests += 1
        self.on_request()
        if self._status:
            self._answers.add(asyncio.create_task(self._answer(reply)))

    async def _answer(self, inbox: str) -> None:
        self._receive(Received(subject=inbox, reply="", data=b"", headers={"Status": self._status}))


async def open_consumer(client: FakeClient) -> Consumer:
    durable = DurableName("TRAJECTORIES-r", "store")
    return await Consumer.open(cast("BrokerClient", client), durable, SystemClock(), BusFailures())


async def test_refused_request_is_repeated_after_a_pause_and_not_at_once() -> None:
    client = FakeClient("503")
    consumer = await open_consumer(client)
    assert await consumer.fetch(1, wait_s=WAIT_S) == []
    assert 1 <= client.num_requests <= 1 + WAIT_S / PAUSE_S
    assert consumer.request_errors_total == client.num_requests


async def test_drain_that_begins_while_a_request_is_sent_ends_the_fetch() -> None:
    client = FakeClient("")
    consumer = await open_consumer(client)
    client.on_request = consumer.end_waits
    async with asyncio.timeout(WAIT_MAX_S / 2):
        assert await consumer.fetch(1, wait_s=WAIT_MAX_S) == []
