"""The pull consumer: prompt, bounded, and nothing lost over a crash of the broker."""

import asyncio
import threading

import pytest

from tests.support.broker import Broker
from tests.support.consumers import fetch_all, open_consumer
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.wire.subjects import ConsumerSpec, DurableName, Topology

pytestmark = pytest.mark.integration

# Far apart: a busy machine may stop the test between two heartbeats, and a delivery is lost after the first.
HEARTBEAT_ACK_WAIT_S, HEARTBEAT_S = 5.0, 0.1


def spec(topology: Topology, *, ack_wait_s: float = 30.0, max_deliver: int = -1) -> ConsumerSpec:
    return ConsumerSpec(
        durable=DurableName(topology.stream("TRAJECTORIES"), "reader"),
        filter_subject=topology.trajectories(0),
        ack_wait_s=ack_wait_s,
        max_deliver=max_deliver,
        max_ack_pending=100,
    )


async def publish(bus: Bus, topology: Topology, *names: str) -> None:
    for name in names:
        await bus.publish(topology.trajectories(0), name.encode(), message_id=name)


async def test_fetch_returns_what_is_there_without_waiting_for_a_full_batch(
    bus: Bus, topology: Topology
) -> None:
    consumer = await open_consumer(bus, spec(topology))
    await publish(bus, topology, "a", "b", "c")
    deliveries = await fetch_all(consumer, 3)
    assert [delivery.data for delivery in deliveries] == [b"a", b"b", b"c"]
    assert [delivery.sequence for delivery in deliveries] == [1, 2, 3]
    assert {delivery.num_delivered for delivery in deliveries} == {1}


async def test_pending_fetch_wakes_with_the_first_message(bus: Bus, topology: Topology) -> None:
    consumer = await open_consumer(bus, spec(topology))
    waiting = asyncio.create_task(consumer.fetch(10, wait_s=60.0))
    await asyncio.sleep(0.1)
    await publish(bus, topology, "a")
    async with asyncio.timeout(60.0):
        assert [delivery.data for delivery in await waiting] == [b"a"]


class StoppedClock(SystemClock):
    """No deadline ever comes."""

    def monotonic_s(self) -> float:
        return 0.0


async def test_waiting_fetch_returns_when_its_service_drains_and_loses_nothing(
    nats: Broker, bus: Bus, topology: Topology
) -> None:
    draining = await Bus.connect(nats.url, name="drains", topology=topology, clock=StoppedClock())
    consumer = await open_consumer(draining, spec(topology))
    waiting = asyncio.create_task(consumer.fetch(10, wait_s=1.0))
    await asyncio.sleep(0)
    draining.end_waits()
    async with asyncio.timeout(60.0):
        assert await waiting == []
        assert await consumer.fetch(10, wait_s=1.0) == [], "nor does it wait again"
    await publish(bus, topology, "a")
    await consumer.close()
    await draining.close()
    other = await open_consumer(bus, spec(topology))
    assert [delivery.data for delivery in await fetch_all(other, 1)] == [b"a"]


async def test_fetch_of_nothing_ends_at_its_deadline_and_the_next_one_still_works(
    bus: Bus, topology: Topology
) -> None:
    consumer = await open_consumer(bus, spec(topology))
    assert await consumer.fetch(1, wait_s=0.2) == []
    await publish(bus, topology, "a")
    assert len(await fetch_all(consumer, 1)) == 1


async def test_larger_fetch_after_a_smaller_request_gets_everything(bus: Bus, topology: Topology) -> None:
    consumer = await open_consumer(bus, spec(topology))
    assert await consumer.fetch(1, wait_s=0.1) == []
    await publish(bus, topology, *(f"m{number}" for number in range(20)))
    assert len(await fetch_all(consumer, 20)) == 20


async def test_nak_redelivers_with_a_higher_count(bus: Bus, topology: Topology) -> None:
    consumer = await open_consumer(bus, spec(topology))
    await publish(bus, topology, "a")
    [first] = await fetch_all(consumer, 1)
    await first.nak()
    [second] = await fetch_all(consumer, 1)
    assert (second.data, second.num_delivered) == (b"a", 2)


async def test_heartbeats_keep_a_delivery_and_their_absence_loses_it(bus: Bus, topology: Topology) -> None:
    consumer = await open_consumer(bus, spec(topology, ack_wait_s=HEARTBEAT_ACK_WAIT_S))
    await publish(bus, topology, "a")
    [first] = await fetch_all(consumer, 1)
    for _ in range(round(1.3 * HEARTBEAT_ACK_WAIT_S / HEARTBEAT_S)):
        await asyncio.sleep(HEARTBEAT_S)
        await first.in_progress()
    assert await consumer.fetch(1, wait_s=0.2) == []
    [second] = await fetch_all(consumer, 1)
    assert second.num_delivered == 2


async def test_terminated_and_acked_messages_leave_the_work_queue(bus: Bus, topology: Topology) -> None:
    consumer = await open_consumer(bus, spec(topology))
    await publish(bus, topology, "a", "b")
    first, second = await fetch_all(consumer, 2)
    await first.term()
    await second.ack()
    async with asyncio.timeout(60.0):
        while (await bus.stream_state(topology.stream("TRAJECTORIES"))).messages:
            await asyncio.sleep(0.02)


async def test_closing_releases_messages_that_were_delivered_but_never_fetched(
    bus: Bus, topology: Topology
) -> None:
    consumer = await open_consumer(bus, spec(topology))
    waiting = asyncio.create_task(consumer.fetch(5, wait_s=60.0))
    await asyncio.sleep(0.1)
    await publish(bus, topology, "a", "b", "c")
    taken = await waiting
    await asyncio.sleep(0.1)
    await consumer.close()
    for delivery in taken:
        await delivery.ack()
    other = await open_consumer(bus, spec(topology))
    rest = await fetch_all(other, 3 - len(taken))
    assert {delivery.data for delivery in [*taken, *rest]} == {b"a", b"b", b"c"}


async def test_closing_releases_messages_that_are_on_their_way(
    nats: Broker, bus: Bus, topology: Topology
) -> None:
    consumer = await open_consumer(bus, spec(topology, ack_wait_s=600.0))
    assert await consumer.fetch(5, wait_s=0.1) == [], "its request stays open"

    async def send_elsewhere() -> None:
        """Return once the broker has sent a message to the consumer, whose event loop stands still."""
        other = await Bus.connect(nats.url, name="other", topology=topology, clock=SystemClock())
        await publish(other, topology, "a")
        while not sum(each.ack_pending for each in await other.consumers(topology.stream("TRAJECTORIES"))):
            await asyncio.sleep(0.01)
        await other.close()

    sending = threading.Thread(target=lambda: asyncio.run(send_elsewhere()))
    sending.start()
    sending.join()
    await consumer.close()
    [delivery] = await fetch_all(await open_consumer(bus, spec(topology, ack_wait_s=600.0)), 1)
    assert (delivery.data, delivery.num_delivered) == (b"a", 2)


@pytest.mark.own_broker
async def test_nothing_is_lost_when_the_broker_crashes_with_messages_out(
    bus: Bus, nats: Broker, topology: Topology
) -> None:
    consumer = await open_consumer(bus, spec(topology, ack_wait_s=5.0))
    await publish(bus, topology, "a", "b")
    [first, _] = await fetch_all(consumer, 2)
    await first.ack()
    async with asyncio.timeout(60.0):
        while (await bus.stream_state(topology.stream("TRAJECTORIES"))).messages > 1:
            await asyncio.sleep(0.02)
    pending = asyncio.create_task(consumer.fetch(1, wait_s=60.0))
    await nats.restart(down_s=0.3)
    await publish(bus, topology, "c")
    seen = {delivery.data for delivery in await pending}
    async with asyncio.timeout(60.0):
        while seen != {b"b", b"c"}:
            for delivery in await consumer.fetch(5, wait_s=1.0):
                seen.add(delivery.data)
                await delivery.ack()


@pytest.mark.own_broker
async def test_request_that_a_killed_broker_has_forgotten_is_made_again(
    nats: Broker, topology: Topology
) -> None:
    bus = await Bus.connect(nats.url, name="waiting", topology=topology, clock=StoppedClock())
    await bus.bootstrap(topology.streams(max_tasks=8))
    consumer = await open_consumer(bus, spec(topology))
    pending = asyncio.create_task(consumer.fetch(1, wait_s=5.0))
    await asyncio.sleep(0.1)
    await bus.stream_state(topology.stream("TRAJECTORIES"))  # answered after the request before it was read
    await nats.restart(down_s=0.3)
    await publish(bus, topology, "a")
    async with asyncio.timeout(60.0):
        [delivery] = await pending
    assert delivery.data == b"a"
    await bus.close()


async def test_consumer_with_a_limit_on_deliveries_of_an_earlier_version_loses_the_limit(
    bus: Bus, topology: Topology
) -> None:
    limited = await open_consumer(bus, spec(topology, max_deliver=2))
    await publish(bus, topology, "a")
    [first] = await fetch_all(limited, 1)
    await first.nak()
    await limited.close()
    await bus.bootstrap((), consumers=(spec(topology),))
    consumer = await open_consumer(bus, spec(topology))
    for number in range(2, 6):
        [delivery] = await fetch_all(consumer, 1)
        assert delivery.num_delivered == number
        await delivery.nak()
    await consumer.close()
