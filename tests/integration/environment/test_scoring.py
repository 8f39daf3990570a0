"""Groups from ROLLOUTS to TRAJECTORIES through a real broker: scored once, whole, or dropped."""

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from tests.integration.environment.groups import ENV, drained, group, publish, scored_messages
from tests.integration.environment.judge_server import serving_judge
from tests.integration.environment.store import FakeStore
from tests.support.broker import Broker
from tests.support.deliveries import lose_deliveries
from tests.support.service_harness import channel_of_test, make_context, running, until
from tidegate.catalogue import environment as statistics
from tidegate.core.deliveries import DELIVERIES_MAX, DELIVERIES_UNTIL_FAILED
from tidegate.core.ids import RunId
from tidegate.core.records import Sampler, StageTiming, Trajectory
from tidegate.environment import loops, main
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.state import scored
from tidegate.environment.tasks.port import Problem, Score
from tidegate.environment.tasks.registry import TASKS
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import LongTailConfig, Settings
from tidegate.runtime.service import ServiceContext
from tidegate.v1 import trajectory_store_service_pb2
from tidegate.wire.clients.environment import Completion, EnvironmentClient
from tidegate.wire.frame import Frame, decode_frame, encode_frame, open_frame
from tidegate.wire.store_requests import check_dropped
from tidegate.wire.subjects import (
    HEADER_REFERENCE,
    HEADER_TRACE_PARENT,
    HEADER_TRAJECTORY_IDS,
    MESSAGE_BYTES_MAX,
    Topology,
)

pytestmark = pytest.mark.integration
CONFIG = EnvironmentConfig(ack_wait_s=2.0)
# What is delivered again is kept again: of tests that count what is kept, no delivery may run out on a busy machine.
DELIVERED_ONCE = EnvironmentConfig(ack_wait_s=60.0)


async def left_and_made(bus: Bus, topology: Topology) -> int:
    left = (await bus.stream_state(topology.stream("ROLLOUTS"))).messages
    return left + (await bus.stream_state(topology.stream("TRAJECTORIES"))).messages


async def test_length_near_the_cap_costs_reward_only_where_there_is_a_cap(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    records, others = (
        [
            msgspec.structs.replace(record, sampler=Sampler(max_new_tokens=10), length_tokens=length)
            for record, length in zip(group(task, "085", "085"), (4, 10), strict=True)
        ]
        for task in ("task-1", "task-2")
    )
    await publish(bus, topology, encode_frame(records), records)
    assert settings.workload.sampler.max_new_tokens > 10, "a cap below the run file's bound"
    capped = msgspec.structs.replace(settings, long_tail=LongTailConfig(cap_quantile=0.95))
    async with running(main.build, CONFIG, make_context("environment", capped, bus=bus)):
        [message] = await scored_messages(bus, topology, 1)
    assert [record.reward for record in decode_frame(message.data)] == [1.0, 0.0]
    components = [record.reward_components for record in decode_frame(message.data)]
    assert [given["overlong"] for given in components] == [0.0, -1.0]
    assert [given["exact"] for given in components] == [1.0, 1.0]
    await publish(bus, topology, encode_frame(others), others)
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)):
        [message] = await scored_messages(bus, topology, 1)
    assert all("overlong" not in record.reward_components for record in decode_frame(message.data))


async def test_group_is_scored_published_whole_and_acknowledged(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    records = group("task-1", "085", "084")
    await publish(bus, topology, encode_frame(records), records)
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)) as context:
        [message] = await scored_messages(bus, topology, 1)
        await drained(bus, topology)
        await until(lambda: context.stats.value(statistics.SCORED) == 2)
    first, second = decode_frame(message.data)
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert first.reward_components == {"exact": 1.0, "digits": 1.0}
    assert "expected '085'" in second.verifier_log
    assert [stage.stage for stage in first.stages] == ["reward.score"]
    assert first.stages[0].worker == "environment-0"
    assert message.headers[HEADER_TRAJECTORY_IDS] == "task-1.0,task-1.1"
    assert message.headers[HEADER_TRACE_PARENT] == first.trace_parent
    np.testing.assert_array_equal(first.tensors["tokens"], records[0].tensors["tokens"])


async def test_redelivered_group_reaches_the_store_under_the_same_id(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    records = group("task-1", "085", "084")
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)):
        await publish(bus, topology, encode_frame(records), records, attempt=1)
        await drained(bus, topology)
        await publish(bus, topology, encode_frame(records), records, attempt=2)
        await drained(bus, topology)
    assert (await bus.stream_state(topology.stream("TRAJECTORIES"))).messages == 1


async def test_undecodable_group_is_quarantined_and_dropped_and_others_pass(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    truncated, nan, foreign, half, good = (group(f"task-{number}", "085", "084") for number in range(1, 6))
    nan[1].tensors["behavior_logprobs"][0] = np.nan
    foreign = [msgspec.structs.replace(record, run_id=RunId("other-run")) for record in foreign]
    await publish(bus, topology, encode_frame(truncated)[:-7], truncated)
    await publish(bus, topology, encode_frame(nan), nan)
    await publish(bus, topology, encode_frame(foreign), foreign)
    await publish(bus, topology, encode_frame(half[:1]), half)
    await publish(bus, topology, encode_frame(good), good)
    async with running(main.build, DELIVERED_ONCE, make_context("environment", settings, bus=bus)) as context:
        [message] = await scored_messages(bus, topology, 1)
        await drained(bus, topology)
    assert [record.task_id for record in decode_frame(message.data)] == ["task-5", "task-5"]
    assert set(store.dropped) == {f"task-{number}.{index}" for number in range(1, 5) for index in (0, 1)}
    assert {reason for reason, _ in store.dropped.values()} == {"invalid"}
    assert "no policy can produce" in store.dropped["task-2.0"][1]
    assert (await bus.stream_state(topology.stream("QUARANTINE"))).messages == 4
    assert context.stats.value(statistics.QUARANTINED) == 4


@pytest.mark.parametrize(
    "header", ["", ",,a b,*", "x" * 999, "t/../x", ",".join(f"t{n}.0" for n in range(6_000))]
)
async def test_hostile_header_of_a_group_that_is_none_ends_no_worker(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore, header: str
) -> None:
    good = group("task-5", "085", "084")
    await bus.publish_core(topology.rollouts(ENV), b"no frame", {HEADER_TRAJECTORY_IDS: header})
    await publish(bus, topology, encode_frame(good), good)
    async with running(main.build, DELIVERED_ONCE, make_context("environment", settings, bus=bus)):
        await scored_messages(bus, topology, 1)
        await drained(bus, topology)
    check_dropped(
        None, [trajectory_store_service_pb2.DroppedTrajectory(trajectory_id=name) for name in store.dropped]
    )
    assert (await bus.stream_state(topology.stream("QUARANTINE"))).messages == 1


async def test_group_that_meets_a_defect_of_the_worker_is_counted_and_dropped_and_others_pass(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable, unscorable, good = (group(f"task-{number}", "085", "084") for number in range(1, 4))

    def open_defectively(data: bytes) -> Frame:
        frame = open_frame(data)
        if frame.columns.task_id[0] == "task-1":
            raise KeyError("a defect")
        return frame

    def check_defectively(records: list[Trajectory], scores: list[Score], *, stage: StageTiming) -> Any:
        if records[0].task_id == "task-2":
            raise ZeroDivisionError
        return scored(records, scores, stage=stage)

    monkeypatch.setattr(loops, "open_frame", open_defectively)
    monkeypatch.setattr(loops, "scored", check_defectively)
    monkeypatch.setattr(loops, "DEFECT_RETRY_S", 0.01)
    for each in (unreadable, unscorable, good):
        await publish(bus, topology, encode_frame(each), each)
    async with running(main.build, DELIVERED_ONCE, make_context("environment", settings, bus=bus)):
        [message] = await scored_messages(bus, topology, 1)
        await drained(bus, topology)
    assert [record.task_id for record in decode_frame(message.data)] == ["task-3", "task-3"]
    assert store.dropped["task-1.0"][0] == "invalid"
    reason, detail = store.dropped["task-2.0"]
    assert (reason, "ZeroDivisionError, a defect" in detail) == ("failed", True)
    assert bus.failures.messages == {"ROLLOUTS": 1 + DELIVERIES_UNTIL_FAILED}


async def test_drop_report_waits_for_an_unavailable_store(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    store.away = True
    records = group("task-1", "085", "084")
    await publish(bus, topology, b"no frame", records)
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)):
        await until(lambda: store.num_calls >= 2)
        assert (await bus.stream_state(topology.stream("ROLLOUTS"))).messages == 1
        store.away = False
        await drained(bus, topology)
    assert set(store.dropped) == {"task-1.0", "task-1.1"}


async def test_group_that_ends_every_worker_is_dropped_unscored_and_others_pass(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    fatal, good = group("task-1", "085", "084"), group("task-2", "085", "084")
    await publish(bus, topology, encode_frame(fatal), fatal)
    spec = topology.rollout_consumer(ENV, ack_wait_s=30.0, max_running=64)
    await lose_deliveries(bus, spec, num_messages=1, times=DELIVERIES_MAX)
    await publish(bus, topology, encode_frame(good), good)
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)):
        [message] = await scored_messages(bus, topology, 1)
        await drained(bus, topology)
    assert {record.task_id for record in decode_frame(message.data)} == {"task-2"}
    assert set(store.dropped) == {"task-1.0", "task-1.1"}
    reason, detail = store.dropped["task-1.0"]
    assert reason == "failed"
    assert detail.startswith(f"never scored: delivered {DELIVERIES_MAX} times")


class BrokenTask:
    """A verifier that fails on one completion."""

    def score(self, problem: Problem, completion: str) -> Score:
        if completion == "084":
            raise ValueError("a defect")
        return Score(1.0, {}, "")


async def test_group_that_the_store_lets_its_sender_not_drop_ends_no_worker(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, ENV, BrokenTask())  # scoring needs no more
    store.refuses = True
    forged, good = group("task-1", "085", "084"), group("task-2", "085", "086")
    for records in (forged, good):
        await publish(bus, topology, encode_frame(records), records)
    config = msgspec.structs.replace(DELIVERED_ONCE, on_error="drop")
    async with running(main.build, config, make_context("environment", settings, bus=bus)):
        [message] = await scored_messages(bus, topology, 1)
        await drained(bus, topology)
    assert {record.task_id for record in decode_frame(message.data)} == {"task-2"}
    assert store.num_calls >= 1


@pytest.mark.parametrize("on_error", ["zero", "drop", "partial"])
async def test_failed_verifier_costs_its_completion_or_its_group_as_configured(
    bus: Bus,
    topology: Topology,
    settings: Settings,
    store: FakeStore,
    on_error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TASKS, ENV, BrokenTask())  # scoring needs no more
    config = msgspec.convert({"on_error": on_error, "partial_credit": 0.25}, EnvironmentConfig)
    broken, good = group("task-1", "085", "084"), group("task-2", "085", "086")
    for records in (broken, good):
        await publish(bus, topology, encode_frame(records), records)
    async with running(main.build, config, make_context("environment", settings, bus=bus)):
        messages = await scored_messages(bus, topology, 1 if on_error == "drop" else 2)
        await drained(bus, topology)
    rewards = {
        str(record.trajectory_id): record for message in messages for record in decode_frame(message.data)
    }
    if on_error == "drop":
        assert set(rewards) == {"task-2.0", "task-2.1"}
        assert {reason for reason, _ in store.dropped.values()} == {"failed"}
        assert set(store.dropped) == {"task-1.0", "task-1.1"}
    else:
        assert rewards["task-1.1"].reward == (0.25 if on_error == "partial" else 0.0)
        assert "a defect" in rewards["task-1.1"].verifier_log
        assert store.dropped == {}


async def test_reward_of_a_group_combines_its_task_and_its_judge(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    async with serving_judge() as judge:
        judge.script = [web.Response(status=503), "Score: 10", "Score: 2"]
        section = {
            "rewards": {"task": 1.0, "taste": 0.5},
            "verifiers": {
                "taste": {"kind": "judge", "base_url": judge.base_url, "model": "m", "max_concurrent": 1}
            },
        }
        records = group("task-1", "085", "084")
        await publish(bus, topology, encode_frame(records), records)
        config = msgspec.convert(section, EnvironmentConfig)
        async with running(main.build, config, make_context("environment", settings, bus=bus)):
            [message] = await scored_messages(bus, topology, 1)
        assert len(judge.requests) == 3, "the failed request was retried"
    rewarded = decode_frame(message.data)
    grades = [record.reward_components["taste"] for record in rewarded]
    assert sorted(grades) == [0.2, 1.0]
    assert [record.reward_components["task"] for record in rewarded] == [1.0, 0.0]
    assert [record.reward for record in rewarded] == [
        pytest.approx(1.0 + 0.5 * grades[0]),
        pytest.approx(0.5 * grades[1]),
    ]
    assert "taste: Score" in rewarded[0].verifier_log


async def test_injected_latency_holds_a_group_back_until_draining(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    records = group("task-1", "085", "084")
    config = msgspec.structs.replace(CONFIG, score_latency="fixed:0.3")
    async with running(main.build, config, make_context("environment", settings, bus=bus)):
        await publish(bus, topology, encode_frame(records), records)
        [message] = await scored_messages(bus, topology, 1)
    [stage] = decode_frame(message.data)[0].stages
    assert stage.finished_at_s - stage.started_at_s >= 0.25
    endless = msgspec.structs.replace(CONFIG, score_latency="fixed:3600")
    others = group("task-2", "085", "084")
    async with running(main.build, endless, make_context("environment", settings, bus=bus)) as context:
        await publish(bus, topology, encode_frame(others), others)
        await until(lambda: context.stats.value(statistics.BUSY_S) > 0.0)
    assert len(await scored_messages(bus, topology, 1)) == 1


async def test_full_stream_holds_finished_groups_and_pauses_consumption(
    nats: Broker, bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    streams = {spec.name: spec for spec in topology.streams(max_tasks=64)}
    full = msgspec.structs.replace(streams[topology.stream("TRAJECTORIES")], max_messages=1)
    await bus.bootstrap((full,))
    await bus.publish(topology.trajectories(0), b"in the way", message_id="first")
    groups = [group(f"task-{number}", "085", "084") for number in range(6)]
    for records in groups:
        await publish(bus, topology, encode_frame(records), records)
    config = msgspec.structs.replace(CONFIG, slots=2)
    async with running(main.build, config, make_context("environment", settings, bus=bus)):
        await until(lambda: bus.backpressure_total >= 4)
        assert (await bus.stream_state(topology.stream("ROLLOUTS"))).messages == 6
        messages = await scored_messages(bus, topology, 7)
        await drained(bus, topology)
    reported = [message.headers[HEADER_TRAJECTORY_IDS] for message in messages[1:]]
    assert sorted(reported) == [f"task-{number}.0,task-{number}.1" for number in range(6)]


async def test_draining_finishes_held_groups_and_releases_the_others(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    groups = [group(f"task-{number}", "085", "084") for number in range(20)]
    for records in groups:
        await publish(bus, topology, encode_frame(records), records)
    config = msgspec.structs.replace(CONFIG, slots=1)
    async with running(main.build, config, make_context("environment", settings, bus=bus)) as context:
        await until(lambda: context.stats.value(statistics.SCORED) >= 2)
    # The broker handles the acknowledgement of a rollout some time after the publish of its trajectory.
    async with asyncio.timeout(60.0):
        while await left_and_made(bus, topology) != 20:
            await asyncio.sleep(0.02)
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus, index=0)):
        await scored_messages(bus, topology, 20)
        await drained(bus, topology)


async def test_group_that_outgrew_a_message_by_its_rewards_is_uploaded(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    records = group("task-1", "085", "084")
    left = MESSAGE_BYTES_MAX - len(encode_frame(records)) - 300
    padding = np.zeros(left // 8 * 8, np.uint8)
    big = [
        msgspec.structs.replace(records[0], tensors={**records[0].tensors, "padding": padding}),
        records[1],
    ]
    await publish(bus, topology, encode_frame(big), big)
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)):
        [message] = await scored_messages(bus, topology, 1)
    assert message.headers[HEADER_REFERENCE] == "1"
    first, second = decode_frame(store.uploads["task-1:scored"])
    assert (first.reward, second.reward) == (1.0, 0.0)


async def test_call_scores_outside_of_the_streams(settings: Settings, bus: Bus, store: FakeStore) -> None:
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)) as context:
        client = client_of(context)
        completions = [Completion("47+38", "47+38=", "085", text, "carries-1") for text in ("085", "185")]
        right, wrong = await client.score(ENV, completions)
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert wrong.components == {"exact": 0.0, "digits": pytest.approx(2 / 3)}


def client_of(context: ServiceContext) -> EnvironmentClient:
    return EnvironmentClient(channel_of_test(context, "environment"))
