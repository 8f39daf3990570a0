"""An actor of segments on a real broker: its output, its waits, and its recovery without loss."""

import asyncio
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.integration.actor.harness import (
    announce_policy,
    count_of,
    emptied,
    give,
    mlp_params,
    read,
    segment,
    segments_settings,
    trajectories,
    until_counts,
    version,
)
from tests.support.broker import Broker
from tests.support.consumers import open_consumer
from tests.support.service_harness import channel_of_test, make_context, running, until
from tidegate.actor import loops, main
from tidegate.actor.config import ActorConfig
from tidegate.catalogue import actor as statistics
from tidegate.core.records import Sampler, Task, VersionSpan
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.v1 import actor_service_pb2 as pb
from tidegate.v1.actor_service_pb2_grpc import ActorServiceStub
from tidegate.wire.convert import task_from_bytes, task_to_bytes, version_from_proto
from tidegate.wire.frame import decode_frame
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS, Topology
from tidegate.wire.validate import validate_trajectory

pytestmark = pytest.mark.integration
# A machine that is busy with other things keeps an actor from its heartbeats for up to a second.
CONFIG = ActorConfig(ack_wait_s=2.0, retry_delay_s=0.2)


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return segments_settings(tmp_path, nats)


async def test_task_becomes_one_valid_trajectory_and_is_acknowledged(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 5, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        [message] = await read(bus, topology.trajectory_consumer(0), 1)
        await emptied(bus, topology, "TASKS")
        await until(lambda: context.stats.value(statistics.TRAJECTORIES) == 1)
        [duplicate] = [await bus.publish(topology.trajectories(0), b"", message_id="task-1:scored")]
    [record] = decode_frame(message.data)
    validate_trajectory(record, run_id=settings.run)
    assert message.headers[HEADER_TRAJECTORY_IDS] == record.trajectory_id == "task-1.0"
    assert duplicate.duplicate, "segments are published under the id of scored trajectories"
    assert record.spans == (VersionSpan(version(5), 0, 8),)
    assert record.tensors["observations"].shape == (9, 4, 4)
    assert record.num_steps == 32
    assert record.actor_id == "actor-0"
    assert [stage.stage for stage in record.stages] == ["task.lease", "trajectory.generate"]
    assert record.stages[1].finished_at_s >= record.stages[1].started_at_s >= record.stages[0].finished_at_s
    assert context.stats.value(statistics.STEPS) == 32
    assert context.stats.value(statistics.SERVING_STEP) == 5


async def test_task_waits_for_the_version_it_requires_however_long_without_being_redelivered(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await give(bus, topology, [segment("task-1", required=1)])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await announce_policy(bus, topology, 0, mlp_params(0))
        await until(
            lambda: (
                context.stats.value(statistics.SERVING_STEP) == 0
                and context.stats.value(statistics.WEIGHT_PULL_MS) > 0
            )
        )
        await asyncio.sleep(1.5 * CONFIG.ack_wait_s)
        assert await count_of(bus, topology, "TRAJECTORIES") == 0
        await announce_policy(bus, topology, 1, mlp_params(1))
        [record] = await trajectories(bus, topology, 1)
    assert record.spans[0].version == version(1)
    assert context.stats.value(statistics.TASKS_REDELIVERED) == 0
    assert context.stats.value(statistics.WAIT_POLICY_S) > 0


async def test_task_that_is_in_the_stream_twice_is_run_once(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    """The task queue publishes again what it did not see acknowledged, maybe after the stream forgot the id."""
    config = msgspec.structs.replace(CONFIG, slots=2)
    async with running(main.build, config, make_context("actor", settings, bus=bus)) as context:
        await announce_policy(bus, topology, 0, mlp_params(0))
        for number in (1, 2):
            data = task_to_bytes(segment("task-1", required=1))
            await bus.publish(topology.tasks("default"), data, message_id=f"task-1:{number}")
        await until(lambda: context.stats.value(statistics.TASKS_DUPLICATE) == 1)
        await announce_policy(bus, topology, 1, mlp_params(1))
        [record] = await trajectories(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
    assert record.trajectory_id == "task-1.0"
    assert context.stats.value(statistics.TRAJECTORIES) == 1


async def test_every_segment_is_made_by_the_newest_policy_at_its_start(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)):
        for step in range(6):
            await announce_policy(bus, topology, step, mlp_params(step))
            await give(bus, topology, [segment(f"task-{step}", required=step)])
            [record] = await trajectories(bus, topology, 1)
            assert record.trajectory_id == f"task-{step}.0"
            assert record.spans == (VersionSpan(version(step), 0, 8),)


async def test_message_that_is_no_task_goes_to_quarantine_and_others_pass(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    foreign = msgspec.structs.replace(segment("task-foreign"), run_id="other-run")
    await announce_policy(bus, topology, 0, mlp_params(0))
    impossible = [
        msgspec.structs.replace(segment("task-huge"), unroll_length=2**31 - 1),
        msgspec.structs.replace(segment("task-wide"), num_samples=2**31 - 1),
        msgspec.structs.replace(segment("task-past"), required_version=version(-1)),
        msgspec.structs.replace(segment("task-nan"), sampler=Sampler(temperature=math.nan)),
        segment("task.with.dots"),
        segment("task >"),
    ]
    bodies = [b"\xff\xff no task", b"", b"\0" * 200_000, *map(task_to_bytes, [foreign, *impossible])]
    for number, body in enumerate(bodies):
        await bus.publish(topology.tasks("default"), body, message_id=f"bad-{number}")
    await give(bus, topology, [segment("task-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        [record] = await trajectories(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
    assert record.trajectory_id == "task-1.0"
    assert await count_of(bus, topology, "QUARANTINE") == len(bodies)
    assert context.stats.value(statistics.QUARANTINED) == len(bodies)


async def test_task_that_meets_a_defect_of_the_actor_is_counted_and_quarantined_and_others_pass(
    bus: Bus, topology: Topology, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_defectively(data: bytes) -> Task:
        if data == b"meets the defect":
            raise KeyError("a defect")
        return task_from_bytes(data)

    monkeypatch.setattr(loops, "task_from_bytes", read_defectively)
    await announce_policy(bus, topology, 0, mlp_params(0))
    await bus.publish(topology.tasks("default"), b"meets the defect", message_id="bad")
    await give(bus, topology, [segment("task-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)):
        [record] = await trajectories(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
    assert record.trajectory_id == "task-1.0"
    assert await count_of(bus, topology, "QUARANTINE") == 1
    assert bus.failures.messages == {"TASKS": 1}


async def test_task_of_an_unknown_environment_is_released_later_and_the_actor_continues(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-bad", env_id="Nope-v1"), segment("task-1"), segment("task-2")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        records = await trajectories(bus, topology, 2)
        await until(lambda: context.stats.value(statistics.TASKS_FAILED) >= 2)
    assert {record.trajectory_id for record in records} == {"task-1.0", "task-2.0"}
    await until_counts(bus, topology, TASKS=1)


async def test_policy_that_does_not_fit_is_refused_and_the_previous_one_stays(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: context.stats.value(statistics.WEIGHT_PULL_MS) > 0)
        await announce_policy(bus, topology, 1, {"policy.0.weight": np.zeros((4, 8), np.float32)})
        await until(lambda: context.stats.value(statistics.POLICIES_REFUSED) == 1)
        await announce_policy(
            bus, topology, 2, mlp_params(0) | {"policy.0.bias": np.full(8, np.nan, np.float32)}
        )
        await until(lambda: context.stats.value(statistics.POLICIES_REFUSED) == 2)
        await give(bus, topology, [segment("task-1")])
        [record] = await trajectories(bus, topology, 1)
        assert record.spans[0].version == version(0)
        await announce_policy(bus, topology, 3, mlp_params(3))
        await give(bus, topology, [segment("task-2", required=3)])
        [record] = await trajectories(bus, topology, 1)
    assert record.spans[0].version == version(3)


async def test_full_stream_keeps_finished_work_stops_taking_tasks_and_loses_nothing(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    streams = {spec.name: spec for spec in topology.streams(max_tasks=64)}
    await bus.bootstrap((msgspec.structs.replace(streams[topology.stream("TRAJECTORIES")], max_messages=1),))
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment(f"task-{number}") for number in range(12)])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: bus.backpressure_total >= 4)
        await asyncio.sleep(1.5 * CONFIG.ack_wait_s)
        # All tasks stay in flight: four in publishing, one finished behind them, one without room.
        assert await count_of(bus, topology, "TASKS") == 11
        busy_s = context.stats.value(statistics.BUSY_S)
        await asyncio.sleep(0.2)
        assert context.stats.value(statistics.BUSY_S) == busy_s
        records = await trajectories(bus, topology, 12)
        await emptied(bus, topology, "TASKS")
    assert {record.task_id for record in records} == {f"task-{number}" for number in range(12)}
    assert context.stats.value(statistics.TASKS_REDELIVERED) == 0


async def test_draining_publishes_finished_work_and_releases_the_rest_at_once(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    tasks = [segment(f"task-{number}") for number in range(40)]
    await give(bus, topology, tasks)
    patient = ActorConfig(ack_wait_s=60.0, prefetch=4)
    async with running(main.build, patient, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: context.stats.value(statistics.TRAJECTORIES) >= 3)
    made = await count_of(bus, topology, "TRAJECTORIES")
    await until_counts(bus, topology, TASKS=40 - made, TRAJECTORIES=made)
    # With an ack_wait of a minute, a task that was not released would not reach the next actor in this test.
    async with running(main.build, patient, make_context("actor", settings, bus=bus)):
        records = await trajectories(bus, topology, 40)
    assert {record.task_id for record in records} == {task.task_id for task in tasks}


async def test_tasks_of_a_killed_actor_are_redelivered_with_the_same_ids(
    bus: Bus, nats: Broker, topology: Topology, settings: Settings
) -> None:
    await give(bus, topology, [segment("task-1"), segment("task-2")])
    spec = topology.task_consumer("default", ack_wait_s=CONFIG.ack_wait_s, max_running=8)
    consumer = await open_consumer(bus, spec)
    taken = await consumer.fetch(2, wait_s=60.0)
    assert len(taken) == 2
    await announce_policy(bus, topology, 0, mlp_params(0))
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        records = await trajectories(bus, topology, 2)
    assert {record.trajectory_id for record in records} == {"task-1.0", "task-2.0"}
    assert context.stats.value(statistics.TASKS_REDELIVERED) == 2


@pytest.mark.own_broker
async def test_broker_crash_in_between_loses_no_task_and_doubles_no_trajectory(
    bus: Bus, nats: Broker, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment(f"task-{number}") for number in range(30)])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: context.stats.value(statistics.TRAJECTORIES) >= 3)
        await nats.restart(down_s=0.3)
        await emptied(bus, topology, "TASKS")
        records = await trajectories(bus, topology, 30)
    assert sorted({record.task_id for record in records}) == sorted(f"task-{number}" for number in range(30))


async def test_serving_call_reports_the_version(bus: Bus, topology: Topology, settings: Settings) -> None:
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        stub = ActorServiceStub(channel_of_test(context, "actor"))
        before = await stub.GetServing(pb.GetServingRequest())
        await announce_policy(bus, topology, 4, mlp_params(0))
        await until(lambda: context.stats.value(statistics.SERVING_STEP) == 4)
        after = await stub.GetServing(pb.GetServingRequest())
    assert not before.HasField("version")
    assert version_from_proto(after.version) == version(4)
    assert (after.actor_id, after.slots, after.busy_slots) == ("actor-0", 1, 0)
    assert after.loaded_at_s > 0
