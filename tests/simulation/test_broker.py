"""The simulated broker has the traits that were measured on the real one, seen through the bus that services use."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from tests.support.consumers import open_consumer
from tidegate.core.errors import BackpressureError, ConflictError, UnavailableError
from tidegate.core.ids import RunId
from tidegate.runtime.bus import Bus
from tidegate.runtime.process_random import GENERATOR
from tidegate.sim.broker import SimulatedBroker
from tidegate.sim.connection import Connection
from tidegate.sim.network import Network, NetworkConditions
from tidegate.sim.process import Process
from tidegate.sim.virtual_loop import VirtualClock, VirtualLoop
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.simulation

TOPOLOGY = Topology(RunId("sim"))
TASKS = TOPOLOGY.tasks("default")
MESSAGES_MAX = 3
ACK_WAIT_S = 1.0
CONSUMER = TOPOLOGY.task_consumer("default", ack_wait_s=ACK_WAIT_S, max_running=2)


class Bench:
    """A broker, and a bus for each client."""

    def __init__(self) -> None:
        self.network = Network(random.Random(1))
        self.broker = SimulatedBroker(
            self.network, random.Random(2), work_queue_messages_max=MESSAGES_MAX, ack_wait_max_s=10.0
        )
        self._clock = VirtualClock(asyncio.get_running_loop())
        self._buses: list[Bus] = []

    async def bus(self, name: str) -> tuple[Process, Bus]:
        process = Process(name)
        connection = Connection(self.broker, self.network, process)
        bus = Bus(connection.as_client(), TOPOLOGY, self._clock)
        connection.on_reconnect = bus.note_reconnect
        self._buses.append(bus)
        await bus.bootstrap(TOPOLOGY.streams(max_tasks=16))
        return process, bus

    async def stop(self) -> None:
        for bus in self._buses:
            await bus.close()
        await asyncio.sleep(0)

    def waiting(self) -> list[bytes]:
        return [message.data for message in self.broker.streams[TOPOLOGY.stream("TASKS")].messages.values()]


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def begin() -> None:
        bench = Bench()
        await scenario(bench)
        await bench.stop()

    GENERATOR.seed(1)
    loop = VirtualLoop()
    try:
        loop.run_until_complete(begin())
    finally:
        loop.close()


def test_full_stream_pushes_back_until_a_message_is_acknowledged() -> None:
    async def scenario(bench: Bench) -> None:
        _, bus = await bench.bus("a")
        for number in range(MESSAGES_MAX):
            await bus.publish(TASKS, b"work", message_id=f"m{number}")
        with pytest.raises(BackpressureError):
            await bus.publish(TASKS, b"more", message_id="m9", deadline_s=1.0)
        consumer = await open_consumer(bus, CONSUMER)
        (delivery, *_) = await consumer.fetch(1, wait_s=1.0)
        await delivery.ack()
        await bus.publish(TASKS, b"more", message_id="m9", deadline_s=1.0)
        assert bench.waiting().count(b"more") == 1

    run(scenario)


def test_same_id_is_stored_once_until_a_restart_forgets_what_was_consumed() -> None:
    async def scenario(bench: Bench) -> None:
        _, bus = await bench.bus("a")
        first = await bus.publish(TASKS, b"work", message_id="m0")
        again = await bus.publish(TASKS, b"work", message_id="m0")
        assert (again.sequence, again.duplicate) == (first.sequence, True)
        consumer = await open_consumer(bus, CONSUMER)
        (delivery,) = await consumer.fetch(1, wait_s=1.0)
        await delivery.ack()
        await asyncio.sleep(1.0)
        bench.broker.kill()
        bench.broker.restart()
        await asyncio.sleep(1.0)
        assert not (await bus.publish(TASKS, b"work", message_id="m0")).duplicate

    run(scenario)


def test_unacknowledged_message_is_redelivered_and_stays_once_it_reached_max_deliver() -> None:
    async def scenario(bench: Bench) -> None:
        _, bus = await bench.bus("a")
        await bus.publish(TASKS, b"work", message_id="m0")
        limited = msgspec.structs.replace(CONSUMER, max_deliver=5)
        consumer = await open_consumer(bus, limited)
        counts: list[int] = []
        for _ in range(3 * limited.max_deliver):
            counts += [delivery.num_delivered for delivery in await consumer.fetch(1, wait_s=2.0)]
        assert counts == list(range(1, limited.max_deliver + 1))
        assert bench.waiting() == [b"work"]

    run(scenario)


def test_heartbeats_keep_a_message_from_being_redelivered() -> None:
    async def scenario(bench: Bench) -> None:
        _, bus = await bench.bus("a")
        await bus.publish(TASKS, b"work", message_id="m0")
        consumer = await open_consumer(bus, CONSUMER)
        (delivery,) = await consumer.fetch(1, wait_s=1.0)
        for _ in range(6):
            await asyncio.sleep(ACK_WAIT_S / 2)
            await delivery.in_progress()
        assert await consumer.fetch(1, wait_s=ACK_WAIT_S / 4) == []

    run(scenario)


def test_readers_together_hold_no_more_than_the_consumer_allows() -> None:
    async def scenario(bench: Bench) -> None:
        _, bus = await bench.bus("a")
        for number in range(MESSAGES_MAX):
            await bus.publish(TASKS, b"work", message_id=f"m{number}")
        consumer = await open_consumer(bus, CONSUMER)
        held = await consumer.fetch(3, wait_s=0.5)
        held += await consumer.fetch(3, wait_s=0.5)
        assert len(held) == CONSUMER.max_ack_pending == 2

    run(scenario)


def test_messages_of_a_killed_reader_go_to_another() -> None:
    async def scenario(bench: Bench) -> None:
        process, bus = await bench.bus("a")
        _, other = await bench.bus("b")
        await bus.publish(TASKS, b"work", message_id="m0")
        assert await (await open_consumer(bus, CONSUMER)).fetch(1, wait_s=1.0)
        process.kill()
        (delivery,) = await (await open_consumer(other, CONSUMER)).fetch(1, wait_s=2.0)
        assert (delivery.data, delivery.num_delivered) == (b"work", 2)

    run(scenario)


def test_compare_and_set_refuses_the_second_writer() -> None:
    async def scenario(bench: Bench) -> None:
        _, bus = await bench.bus("a")
        subject = TOPOLOGY.policy("default")
        await bus.publish(subject, b"one", message_id="v1", expected_last_sequence=0)
        with pytest.raises(ConflictError):
            await bus.publish(subject, b"two", message_id="v2", expected_last_sequence=0)

    run(scenario)


def test_publish_survives_a_broker_restart_and_is_stored_once() -> None:
    async def scenario(bench: Bench) -> None:
        _, bus = await bench.bus("a")
        bench.broker.kill()
        publish = asyncio.create_task(bus.publish(TASKS, b"work", message_id="m0", deadline_s=30.0))
        await asyncio.sleep(5.0)
        assert not publish.done()
        bench.broker.restart()
        await publish
        await asyncio.sleep(5.0)
        assert bench.waiting() == [b"work"]

    run(scenario)


def test_publish_that_timed_out_may_still_arrive() -> None:
    async def scenario(bench: Bench) -> None:
        _, bus = await bench.bus("a")
        # Later than an attempt waits, whatever the draw.
        bench.network.conditions = NetworkConditions(delay_s=3.0, loss=1.0, late=1.0, late_s=5.0)
        with pytest.raises(UnavailableError):
            await bus.publish(TASKS, b"work", message_id="m0", deadline_s=1.0)
        await asyncio.sleep(10.0)
        assert bench.waiting() == [b"work"]

    run(scenario)
