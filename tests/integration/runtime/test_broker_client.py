"""What the client sends and passes on in its own way, beside the library's, on a real nats-server."""

import asyncio
from typing import Any, cast

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import BadSubjectError, ConnectionClosedError, MaxPayloadError, OutboundBufferLimitError

from tests.support.broker import Broker
from tidegate.runtime.broker_client import BrokerClient, Received
from tidegate.runtime.bus_failures import BusFailures
from tidegate.runtime.subscribing import subscribe

pytestmark = pytest.mark.integration

TIMEOUT_S = 60.0
# Above what the library lets wait for its flusher (2 MiB), in messages below the broker's limit of one.
BODIES = [bytes([number]) * 700_000 for number in range(8)]


async def until_subscribed(client: Client) -> None:
    """Return once the broker has the subscriptions: the first PING overtakes them, the second one follows."""
    await client.flush()
    await client.flush()


async def follow(client: BrokerClient, subject: str) -> "asyncio.Queue[Received]":
    received = asyncio.Queue[Received]()
    await client.follow(subject, received.put_nowait, BusFailures())
    await until_subscribed(client)
    return received


async def get(received: "asyncio.Queue[Received]") -> Received:
    async with asyncio.timeout(TIMEOUT_S):
        return await received.get()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Nats-Msg-Id": "t-1:scored", "traceparent": ""},
        {"Tidegate-Reason": "größer als eine Nachricht: ja", "X": " padded "},
    ],
)
async def test_library_and_client_read_each_others_messages_alike(
    client: BrokerClient, library: Client, headers: dict[str, str]
) -> None:
    both: list[tuple[str, str, bytes, dict[str, str]]] = []
    arrived = asyncio.Event()

    def take(message: Msg | Received) -> None:
        both.append((message.subject, message.reply, message.data, message.headers or {}))
        if len(both) == 4:
            arrived.set()

    async def receive(message: Msg) -> None:
        take(message)

    await client.follow("s.*", take, BusFailures())
    await subscribe(library, "s.*", receive, BusFailures())
    await until_subscribed(client)
    await until_subscribed(library)
    await client.send("s.1", b"body", reply="r", headers=headers)
    await library.publish("s.1", b"body", reply="r", headers=headers or None)
    async with asyncio.timeout(TIMEOUT_S):
        await arrived.wait()
    stripped = {name: value.strip() for name, value in headers.items()}
    assert both == [("s.1", "r", b"body", stripped)] * 4


async def test_line_break_in_a_header_begins_no_other_header(client: BrokerClient) -> None:
    received = await follow(client, "s")
    await client.send("s", b"", headers={"Reason": "a\r\nNats-Msg-Id: forged", "B\nC": "d\re"})
    assert (await get(received)).headers == {"Reason": "a  Nats-Msg-Id: forged", "B C": "d e"}


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB b 0\r\n", "a\t"])
async def test_subject_that_would_begin_another_command_is_refused(
    client: BrokerClient, subject: str
) -> None:
    with pytest.raises(BadSubjectError):
        await client.send(subject, b"x")


async def test_message_without_a_responder_comes_back_with_its_status(client: BrokerClient) -> None:
    received = await follow(client, "inbox")
    await client.send("unanswered", b"x", reply="inbox")
    message = await get(received)
    assert (message.data, message.headers["Status"]) == (b"", "503")


async def test_bodies_beyond_what_may_wait_arrive_whole_and_in_order(client: BrokerClient) -> None:
    received = await follow(client, "s")
    for body in BODIES:
        await client.send("s", body, headers={"Nats-Msg-Id": "1"})
    assert [(await get(received)).data for _ in BODIES] == BODIES


async def test_answers_reach_each_subject_once(client: BrokerClient) -> None:
    received = await follow(client, "ack.*")
    await client.answer([f"ack.{number}" for number in range(100)], b"+ACK")
    messages = [await get(received) for _ in range(100)]
    assert [(message.subject, message.data) for message in messages] == [
        (f"ack.{number}", b"+ACK") for number in range(100)
    ]
    assert received.empty()


async def test_subject_that_is_no_text_ends_no_reader(client: BrokerClient, library: Client) -> None:
    subscribed = asyncio.Queue[str]()

    async def receive(message: Msg) -> None:
        subscribed.put_nowait(message.subject)

    followed = await follow(client, "s.*")
    await subscribe(client, "s.*", receive, BusFailures())
    await until_subscribed(client)
    # The library sends only text, and the broker takes any bytes.
    await cast("Any", library)._send_command(b"PUB s.\xff \xfe 1\r\nx\r\n")
    await library.publish("s.good", b"y")
    await library.flush()
    assert [(await get(followed)).subject for _ in range(2)] == ["s.\ufffd", "s.good"]
    async with asyncio.timeout(TIMEOUT_S):
        assert [await subscribed.get() for _ in range(2)] == ["s.\ufffd", "s.good"]


async def test_receiver_that_raises_loses_its_message_and_no_other(client: BrokerClient) -> None:
    failures, received = BusFailures(), asyncio.Queue[Received]()

    def receive(message: Received) -> None:
        if message.data == b"bad":
            raise ValueError("no")
        received.put_nowait(message)

    await client.follow("s", receive, failures)
    for body in (b"bad", b"good"):
        await client.send("s", body)
    assert (await get(received)).data == b"good"
    assert failures.messages == {"replies": 1}


@pytest.mark.own_broker
async def test_followed_subject_is_followed_again_after_a_reconnect(
    client: BrokerClient, nats: Broker
) -> None:
    received = await follow(client, "s")
    nats.kill()
    while client.is_connected:
        await asyncio.sleep(0.01)
    await client.send("s", b"sent meanwhile", headers={"A": "b"})
    await client.send("s", BODIES[0])
    await client.send("s", BODIES[1])
    with pytest.raises(OutboundBufferLimitError):
        await client.send("s", BODIES[2])
    await asyncio.to_thread(nats.start)
    assert (await get(received)).data == b"sent meanwhile"


async def test_what_no_broker_takes_is_refused_at_once(client: BrokerClient) -> None:
    with pytest.raises(MaxPayloadError):
        await client.send("s", bytes(client.max_payload + 1))
    await client.close()
    with pytest.raises(ConnectionClosedError):
        await client.send("s", b"x")
    with pytest.raises(ConnectionClosedError):
        await client.answer(["s"], b"+ACK")
