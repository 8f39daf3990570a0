"""No message ends a process, now or after a restart: every reader of a stream or subject, on a real broker.

Work: TASKS (actor), ROLLOUTS (environment), TRAJECTORIES (trajectory store). State: POLICY (weight distribution, and
the watch of every follower), CONTROL (task queue), PROGRESS (actor), statistics (task queue, admission, the
supervisor). Events: evaluations (task queue). The actor, the environment and weight distribution have theirs in their
own tests; the others are here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.service_harness import make_context, running, until
from tests.support.settings import make_settings
from tests.unit.trajectory_store.building import make_trajectory
from tidegate.admission import main as admission
from tidegate.admission.config import AdmissionConfig
from tidegate.catalogue import admission as admission_statistics
from tidegate.catalogue import process
from tidegate.catalogue import task_queue as queue_statistics
from tidegate.catalogue import trajectory_store as store_statistics
from tidegate.core.ids import GroupId, RunId
from tidegate.runtime.bus import Bus
from tidegate.runtime.instances import instance_name
from tidegate.runtime.service import ServiceContext, ServiceParts
from tidegate.task_queue import main as task_queue
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.trajectory_store import intake
from tidegate.trajectory_store import main as trajectory_store
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.wire.frame import Frame, encode_frame, open_frame
from tidegate.wire.stats import ServiceStats, encode_stats
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS, MESSAGE_BYTES_MAX, Topology

pytestmark = pytest.mark.integration

GARBAGE = [
    b"",
    b"garbage",
    b"\xff" * 4096,
    b"{}",
    b"[" * 4096,
    b"TGF2" + bytes(64),
    # As large as the bus sends.
    bytes(range(256)) * ((MESSAGE_BYTES_MAX - 4096) // 256),
]


class Reader(msgspec.Struct, frozen=True):
    """One service, what it is sent, and the counter that shows how much of it was read."""

    service: str
    build: Callable[[ServiceContext, Any], Awaitable[ServiceParts]]
    config: object
    send: Callable[[Bus, Topology, bytes, int], Awaitable[None]]
    num_handled: Callable[[ServiceContext], float]


async def to_policy(bus: Bus, topology: Topology, data: bytes, number: int) -> None:
    await bus.publish(topology.policy("default"), data, message_id=f"poison-{number}")


async def to_control(bus: Bus, topology: Topology, data: bytes, number: int) -> None:
    await bus.publish(topology.control("task_queue"), data or b"x", message_id=f"poison-{number}")


async def to_stats(bus: Bus, topology: Topology, data: bytes, number: int) -> None:
    await bus.publish_core(topology.stats("environment"), data)


async def to_evaluations(bus: Bus, topology: Topology, data: bytes, number: int) -> None:
    await bus.publish(topology.event("evaluation"), data, message_id=f"poison-{number}")
    await to_stats(bus, topology, data, number)


async def to_trajectories(bus: Bus, topology: Topology, data: bytes, number: int) -> None:
    headers = {HEADER_TRAJECTORY_IDS: f"t{number}.0,,a b,{'x' * 999}"}
    await bus.publish(topology.trajectories(0), data, message_id=f"poison-{number}", headers=headers)


async def until_heard(bus: Bus, topology: Topology, is_heard: Callable[[], bool]) -> None:
    """Send garbage as statistics until it is counted: the broker keeps nothing from before the subscription."""
    async with asyncio.timeout(60.0):
        while not is_heard():
            await to_stats(bus, topology, b"garbage", 0)
            await asyncio.sleep(0.05)


QUEUE = TaskQueueConfig(limits_refresh_s=0.1, retry_backoff_s=0.05, evaluation_every_versions=0)
READERS = {
    "POLICY by a follower": Reader(
        "task_queue",
        task_queue.build,
        QUEUE,
        to_policy,
        lambda context: context.stats.value(process.ANNOUNCEMENTS_IGNORED),
    ),
    "CONTROL by the task queue": Reader(
        "task_queue",
        task_queue.build,
        QUEUE,
        to_control,
        lambda context: context.stats.value(queue_statistics.LIMITS_REFUSED),
    ),
    "statistics by the task queue": Reader(
        "task_queue",
        task_queue.build,
        QUEUE,
        to_stats,
        lambda context: context.stats.value(queue_statistics.STATS_REFUSED),
    ),
    "evaluations by the task queue": Reader(
        "task_queue",
        task_queue.build,
        msgspec.structs.replace(QUEUE, evaluation_every_versions=1),
        to_evaluations,
        lambda context: context.stats.value(queue_statistics.STATS_REFUSED),
    ),
    "statistics by admission": Reader(
        "admission",
        admission.build,
        AdmissionConfig(tick_s=0.05, window_s=2.0),
        to_stats,
        lambda context: context.stats.value(admission_statistics.STATS_REFUSED),
    ),
    "TRAJECTORIES by the store": Reader(
        "trajectory_store",
        trajectory_store.build,
        TrajectoryStoreConfig(),
        to_trajectories,
        lambda context: context.stats.value(store_statistics.QUARANTINED),
    ),
}


@pytest.mark.parametrize("name", READERS)
async def test_garbage_ends_no_reader_now_or_after_a_restart(
    name: str, tmp_path: Path, nats: Broker, bus: Bus, topology: Topology
) -> None:
    reader = READERS[name]
    settings = make_settings(tmp_path, broker_url=nats.url)
    is_kept = reader.send not in (to_stats, to_evaluations)
    # ``running`` fails if a loop ended by an error.
    async with running(
        reader.build, reader.config, make_context(reader.service, settings, bus=bus)
    ) as context:
        if not is_kept:
            await until_heard(bus, topology, lambda: reader.num_handled(context) >= 1)
        handled = reader.num_handled(context)
        for number, data in enumerate(GARBAGE):
            await reader.send(bus, topology, data, number)
        await until(lambda: reader.num_handled(context) >= handled + len(GARBAGE))
    await reader.send(bus, topology, b"garbage that is there at the start", len(GARBAGE))
    async with running(
        reader.build, reader.config, make_context(reader.service, settings, bus=bus)
    ) as context:
        if is_kept:
            await until(lambda: reader.num_handled(context) >= 1)
        else:
            await until_heard(bus, topology, lambda: reader.num_handled(context) >= 1)


async def test_messages_of_another_run_and_of_another_schema_are_quarantined_by_the_store(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology
) -> None:
    settings = make_settings(tmp_path, broker_url=nats.url)
    record = make_trajectory("t1")
    poison = [
        msgspec.structs.replace(record, run_id=RunId("other-run")),
        msgspec.structs.replace(record, num_steps=2**63 - 1),
        msgspec.structs.replace(record, group_id=GroupId("g 1")),
        msgspec.structs.replace(record, reward=1e300),
        msgspec.structs.replace(record, trace_parent="no trace context 1"),
        msgspec.structs.replace(record, started_at_s=1e11),
    ]
    context = make_context("trajectory_store", settings, bus=bus)
    async with running(trajectory_store.build, TrajectoryStoreConfig(), context):
        for number, each in enumerate(poison):
            await to_trajectories(bus, topology, encode_frame([each]), number)
        await until(lambda: context.stats.value(store_statistics.QUARANTINED) >= len(poison))
    assert (await bus.stream_state(topology.stream("QUARANTINE"))).messages == len(poison)


async def test_message_larger_than_the_bus_sends_is_quarantined_cut(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology
) -> None:
    settings = make_settings(tmp_path, broker_url=nats.url)
    context = make_context("trajectory_store", settings, bus=bus)
    async with running(trajectory_store.build, TrajectoryStoreConfig(), context):
        # Sent past the bus' own check; the stream takes up to 1 MiB, 64 KiB of headers included.
        await bus.publish_core(topology.trajectories(0), b"\xff" * 900_000)
        await bus.publish_core(
            topology.trajectories(0), b"\xff" * 900_000, {HEADER_TRAJECTORY_IDS: "t1.0," * 12_000}
        )
        await bus.publish_core(
            topology.trajectories(0), b"\xff" * 900_000, {HEADER_TRAJECTORY_IDS: "t1.0," * 9_500}
        )
        await until(lambda: context.stats.value(store_statistics.QUARANTINED) >= 3)
    assert (await bus.stream_state(topology.stream("QUARANTINE"))).messages == 3


async def test_report_with_hostile_texts_and_numbers_ends_no_reader(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology
) -> None:
    settings = make_settings(tmp_path, broker_url=nats.url)
    hostile = ServiceStats(
        service="actor",
        instance="actor-0",
        state="?" * 100,
        at_s=1e11,
        started_at_s=-1e11,
        values={"wait_task_s_total": 2.0**53, "no such statistic": -1.0},
        labels={"serving": "not a version", "task_refusal": "x" * 100_000},
    )
    queue = make_context("task_queue", settings, bus=bus)
    watcher = make_context("admission", settings, bus=bus)
    async with (
        running(task_queue.build, QUEUE, queue),
        running(admission.build, AdmissionConfig(tick_s=0.05, window_s=2.0), watcher),
    ):
        for service in (
            "actor",
            "learner",
            "trajectory_store",
            "task_queue",
            "weight_distribution",
        ):
            await bus.publish_core(
                topology.stats(service),
                encode_stats(
                    msgspec.structs.replace(hostile, service=service, instance=instance_name(service, 0))
                ),
            )
        refused = watcher.stats.value(admission_statistics.STATS_REFUSED)
        await until_heard(
            bus, topology, lambda: watcher.stats.value(admission_statistics.STATS_REFUSED) > refused
        )
        decided = watcher.stats.value(admission_statistics.DECISIONS)
        await until(lambda: watcher.stats.value(admission_statistics.DECISIONS) >= decided + 3)


async def test_message_at_which_the_store_fails_by_a_defect_is_counted_and_quarantined_and_others_pass(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_defectively(frame: bytes) -> Frame:
        if frame == b"meets the defect":
            raise KeyError("a defect")
        return open_frame(frame)

    monkeypatch.setattr(intake, "open_frame", open_defectively)
    settings = make_settings(tmp_path, broker_url=nats.url)
    context = make_context("trajectory_store", settings, bus=bus)
    async with running(trajectory_store.build, TrajectoryStoreConfig(), context):
        await to_trajectories(bus, topology, b"meets the defect", 0)
        await to_trajectories(bus, topology, b"garbage", 1)
        await until(lambda: context.stats.value(store_statistics.QUARANTINED) >= 2)
    assert bus.failures.messages == {"TRAJECTORIES": 1}
    assert (await bus.stream_state(topology.stream("QUARANTINE"))).messages == 2
    assert (await bus.stream_state(topology.stream("TRAJECTORIES"))).messages == 0
