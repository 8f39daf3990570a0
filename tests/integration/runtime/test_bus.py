"""The broker's traits that the bus is built for, each on a real nats-server."""

import asyncio
from typing import Any, cast

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from tests.support.broker import Broker
from tests.support.consumers import fetch_all, open_consumer
from tests.support.service_harness import until
from tidegate.core.errors import (
    BackpressureError,
    ConflictError,
    PayloadTooLargeError,
    StaleFolderError,
    UnavailableError,
)
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.replies import Replies
from tidegate.wire.subjects import MESSAGE_BYTES_MAX, StreamSpec, Topology

pytestmark = pytest.mark.integration


async def connect(nats: Broker, topology: Topology) -> Bus:
    return await Bus.connect(nats.url, name="other", topology=topology, clock=SystemClock())


async def ignore(_data: bytes, _headers: dict[str, str]) -> None:
    pass


def cannot_work(bus: Bus) -> bool:
    try:
        bus.check()
    except UnavailableError:
        return True
    return False


async def test_publish_reports_a_repeated_id_as_duplicate(bus: Bus, topology: Topology) -> None:
    first = await bus.publish(topology.trajectories(0), b"body", message_id="t-1")
    second = await bus.publish(topology.trajectories(0), b"body", message_id="t-1")
    assert (first.duplicate, second.duplicate) == (False, True)
    assert (await bus.stream_state(topology.stream("TRAJECTORIES"))).messages == 1


async def test_full_stream_is_backpressure_until_a_reader_frees_a_slot(bus: Bus, topology: Topology) -> None:
    for number in range(64):
        await bus.publish(topology.tasks("default"), b"task", message_id=f"t-{number}")
    with pytest.raises(BackpressureError, match="its reader is behind"):
        await bus.publish(topology.tasks("default"), b"task", message_id="t-64", deadline_s=0.3)
    waiting = asyncio.create_task(
        bus.publish(topology.tasks("default"), b"task", message_id="t-64", deadline_s=60.0)
    )
    consumer = await open_consumer(bus, topology.task_consumer("default", ack_wait_s=30.0, max_running=8))
    [delivery] = await fetch_all(consumer, 1)
    await delivery.ack()
    assert not (await waiting).duplicate
    assert bus.backpressure_total >= 2


@pytest.mark.own_broker
async def test_publish_across_a_broker_crash_is_stored_exactly_once(
    bus: Bus, nats: Broker, topology: Topology
) -> None:
    nats.kill()
    waiting = asyncio.create_task(bus.publish(topology.trajectories(0), b"body", message_id="t-1"))
    await asyncio.sleep(0.3)
    await nats.restart()
    await waiting
    await bus.publish(topology.trajectories(0), b"body", message_id="t-1")
    assert (await bus.stream_state(topology.stream("TRAJECTORIES"))).messages == 1
    assert bus.reconnects == 1


@pytest.mark.own_broker
@pytest.mark.own_broker
async def test_check_passes_while_the_broker_is_away_and_after_it(
    bus: Bus, nats: Broker, topology: Topology
) -> None:
    await bus.subscribe(topology.stats("learner"), ignore)
    bus.check()
    nats.kill()
    await until(lambda: not bus.connected)
    bus.check()
    nats.start()
    await until(lambda: bus.connected)
    bus.check()
    await bus.publish(topology.trajectories(0), b"body", message_id="t-1")
    bus.check()


@pytest.mark.parametrize(
    "fails", ["pings", "subscription", pytest.param("reconnecting", marks=pytest.mark.own_broker)]
)
async def test_client_whose_task_ended_for_want_of_memory_is_found(
    nats: Broker, topology: Topology, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    async def finds_no_memory(*_: object) -> None:
        raise MemoryError

    bus = await connect(nats, topology)
    with monkeypatch.context() as patches:
        match fails:
            case "pings":
                patches.setattr(Client, "_send_ping", finds_no_memory)
            case "reconnecting":
                patches.setattr(Client, "_select_next_server", finds_no_memory)
            case _:
                patches.setattr(Subscription, "_wait_for_msgs", finds_no_memory)
        await bus.subscribe(topology.stats("learner"), ignore)
        if fails == "reconnecting":
            await nats.restart()
        await until(lambda: cannot_work(bus))
    await bus.close()


async def test_closed_transport_that_the_client_has_not_noticed_is_an_unavailable_broker(
    nats: Broker, topology: Topology
) -> None:
    bus = await connect(nats, topology)
    client = cast("Any", bus)._client
    client._reading_task.cancel()
    client._transport.close()
    assert bus.connected
    with pytest.raises(UnavailableError):
        await bus.publish(topology.trajectories(0), b"body", message_id="t-1", deadline_s=0.2)
    await bus.publish_core(topology.stats("learner"), b"body")
    with pytest.raises(UnavailableError):
        await bus.stream_state(topology.stream("TASKS"))
    await until(lambda: cannot_work(bus))
    await bus.close()


@pytest.mark.own_broker
async def test_publish_without_a_broker_ends_at_its_deadline(
    bus: Bus, nats: Broker, topology: Topology
) -> None:
    nats.kill()
    with pytest.raises(UnavailableError, match="did not acknowledge"):
        await bus.publish(topology.trajectories(0), b"body", message_id="t-1", deadline_s=0.5)


@pytest.mark.own_broker
async def test_bus_closes_with_something_to_send_and_no_broker(nats: Broker, topology: Topology) -> None:
    bus = await connect(nats, topology)
    nats.kill()
    await until(lambda: not bus.connected)
    with pytest.raises(UnavailableError):
        await bus.publish(topology.trajectories(0), b"body", message_id="t-1", deadline_s=0.3)
    await bus.close()
    assert not bus.connected


async def test_oversized_message_is_refused_before_it_costs_the_connection(
    bus: Bus, topology: Topology
) -> None:
    with pytest.raises(PayloadTooLargeError, match="upload"):
        await bus.publish(topology.trajectories(0), bytes(MESSAGE_BYTES_MAX - 10), message_id="t-1")
    await bus.publish(topology.trajectories(0), b"small", message_id="t-2")
    assert bus.reconnects == 0


async def test_compare_and_set_lets_one_of_two_publishers_win(bus: Bus, topology: Topology) -> None:
    subject = topology.policy("default")
    first = await bus.publish(subject, b"v0", message_id="v0", expected_last_sequence=0)
    await bus.publish(subject, b"v1", message_id="v1", expected_last_sequence=first.sequence)
    with pytest.raises(ConflictError, match="moved on"):
        await bus.publish(subject, b"v1b", message_id="v1b", expected_last_sequence=first.sequence)
    newest = await bus.last(topology.stream("POLICY"), subject)
    assert newest is not None
    assert newest.data == b"v1"


async def test_last_of_an_empty_subject_is_none(bus: Bus, topology: Topology) -> None:
    assert await bus.last(topology.stream("POLICY"), topology.policy("nobody")) is None


async def test_bootstrap_by_several_services_at_once_agrees(nats: Broker, topology: Topology) -> None:
    buses = await asyncio.gather(*(connect(nats, topology) for _ in range(4)))
    await asyncio.gather(*(bus.bootstrap(topology.streams(max_tasks=10)) for bus in buses))
    await asyncio.gather(*(bus.close() for bus in buses))


async def test_bootstrap_refuses_an_edit_that_would_lose_messages(bus: Bus, topology: Topology) -> None:
    changed = StreamSpec(
        name=topology.stream("TASKS"),
        subjects=(f"tg.{topology.run_id}.task.*",),
        retention="limits",
        discard="old",
        max_bytes=1024,
    )
    with pytest.raises(StaleFolderError, match="another shape"):
        await bus.bootstrap((changed,))


async def test_bootstrap_updates_limits_in_place(bus: Bus, topology: Topology) -> None:
    await bus.bootstrap(topology.streams(max_tasks=65))
    for number in range(65):
        await bus.publish(topology.tasks("default"), b"task", message_id=f"t-{number}")


async def test_subscription_follows_what_is_published_into_a_stream(bus: Bus, topology: Topology) -> None:
    seen: list[bytes] = []
    arrived = asyncio.Event()

    async def handler(data: bytes, headers: dict[str, str]) -> None:
        seen.append(data)
        arrived.set()

    await bus.subscribe(topology.policy("default"), handler)
    await bus.publish(topology.policy("default"), b"v0", message_id="v0")
    await asyncio.wait_for(arrived.wait(), timeout=60.0)
    assert seen == [b"v0"]


async def test_quarantine_keeps_the_body_and_the_reason(bus: Bus, topology: Topology) -> None:
    await bus.quarantine(
        "store", b"broken", reason="line\nbreak", headers={"Nats-Msg-Id": "x", "traceparent": "tp"}
    )
    kept = await bus.last(topology.stream("QUARANTINE"), topology.quarantine("store"))
    assert kept is not None
    assert kept.data == b"broken"
    assert kept.headers["Tidegate-Reason"] == "line break"
    assert kept.headers["traceparent"] == "tp"


async def test_connect_without_a_broker_names_the_address(topology: Topology) -> None:
    with pytest.raises(UnavailableError, match="start nats-server"):
        await Bus.connect(
            "nats://127.0.0.1:9", name="test", topology=topology, clock=SystemClock(), timeout_s=0.3
        )


@pytest.mark.parametrize(
    ("code", "description"),
    [(10047, "insufficient storage resources available"), (10077, "no space left on device")],
)
async def test_full_volume_of_the_broker_is_not_blamed_on_a_reader(
    bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch, code: int, description: str
) -> None:
    answer = msgspec.json.encode({"error": {"code": 500, "err_code": code, "description": description}})

    async def request(self: Replies, *_: object, **__: object) -> bytes:
        return answer

    monkeypatch.setattr(Replies, "request", request)
    with pytest.raises(BackpressureError, match="free space on the broker's volume"):
        await bus.publish(topology.tasks("default"), b"task", message_id="t-1", deadline_s=0.3)
