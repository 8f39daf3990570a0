"""An actor of text on a real broker: whole groups, large groups, evaluations."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.integration.actor.harness import (
    announce_policy,
    char_lm_params,
    count_of,
    emptied,
    give,
    group,
    read,
    text_settings,
    until_counts,
    version,
)
from tests.integration.environment.store import FakeStore
from tests.support.broker import Broker
from tests.support.service_harness import make_context, running, until
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.catalogue import actor as statistics
from tidegate.core.cut_off import CUT_OFF
from tidegate.core.ids import PromptId
from tidegate.core.records import Sampler
from tidegate.environment import main as environment_main
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.tasks.arithmetic import Arithmetic
from tidegate.environment.tasks.port import dataset_rows
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.wire.frame import decode_frame
from tidegate.wire.subjects import HEADER_REFERENCE, HEADER_TRAJECTORY_IDS, Topology
from tidegate.wire.validate import validate_trajectory

pytestmark = pytest.mark.integration
CONFIG = ActorConfig(slots=4, prefetch=4, ack_wait_s=2.0, retry_delay_s=0.2)
# Ends a hang; a loaded machine takes seconds to start an actor.
HOLD_S = 60


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return text_settings(tmp_path, nats)


async def test_groups_go_whole_and_unscored_to_the_environment_workers(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 2, char_lm_params(0))
    await give(bus, topology, [group(f"task-{number}") for number in range(5)])
    spec = topology.rollout_consumer("arithmetic", ack_wait_s=30.0, max_running=64)
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        messages = await read(bus, spec, 5)
        await emptied(bus, topology, "TASKS")
        await until(lambda: context.stats.value(statistics.TRAJECTORIES) == 10)
    assert await count_of(bus, topology, "TRAJECTORIES") == 0
    for message in messages:
        records = decode_frame(message.data)
        task_id = records[0].task_id
        assert [record.trajectory_id for record in records] == [f"{task_id}.0", f"{task_id}.1"]
        assert message.headers[HEADER_TRAJECTORY_IDS] == f"{task_id}.0,{task_id}.1"
        for record in records:
            validate_trajectory(record, run_id=settings.run)
            assert record.reward is None
            assert (record.group_id, record.group_size) == (task_id, 2)
            assert record.answer
            assert record.spans[0].version == version(2)
        assert records[0].trace_parent[3:35] != records[1].trace_parent[3:35], "one trace a trajectory"
    tokens = sum(record.num_steps for message in messages for record in decode_frame(message.data))
    assert context.stats.value(statistics.STEPS) == tokens


async def test_tasks_are_left_in_their_stream_until_a_policy_is_there(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    async def num_taken() -> int:
        return sum(each.ack_pending for each in await bus.consumers(topology.stream("TASKS")))

    await give(bus, topology, [group("task-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: context.stats.value(statistics.WAIT_POLICY_S) > 0.5)
        assert await num_taken() == 0, "their deadline counts from their delivery"
        await announce_policy(bus, topology, 2, char_lm_params(0))
        await emptied(bus, topology, "TASKS")


async def test_task_that_no_model_can_read_does_not_fail_the_batch(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    unreadable = msgspec.structs.replace(group("task-bad"), prompt="47×38=", prompt_id=PromptId("47×38"))
    await announce_policy(bus, topology, 0, char_lm_params(0))
    await give(bus, topology, [group("task-1"), unreadable, group("task-2")])
    spec = topology.rollout_consumer("arithmetic", ack_wait_s=30.0, max_running=64)
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        messages = await read(bus, spec, 2)
        await until(lambda: context.stats.value(statistics.TASKS_FAILED) >= 1)
    assert {decode_frame(message.data)[0].task_id for message in messages} == {"task-1", "task-2"}
    await until_counts(bus, topology, TASKS=1)


async def test_group_that_no_message_can_hold_is_scored_by_a_call_and_uploaded(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    await announce_policy(bus, topology, 0, char_lm_params(0))
    await give(bus, topology, [group("task-1", num_samples=4096)])
    async with (
        running(environment_main.build, EnvironmentConfig(), make_context("environment", settings, bus=bus)),
        running(main.build, CONFIG, make_context("actor", settings, bus=bus)),
    ):
        [message] = await read(bus, topology.trajectory_consumer(0), 1)
        await emptied(bus, topology, "TASKS")
    assert message.headers[HEADER_REFERENCE] == "1"
    records = decode_frame(store.uploads["task-1:scored"])
    assert len(records) == records[0].group_size == 4096
    assert records[0].stages[-1].stage == "reward.score"
    for record in records:
        assert record.reward is not None
        # The verifier's log shows what it read.
        assert (record.reward < 1.0 and CUT_OFF in record.verifier_log) == (record.finish_reason == "length")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_evaluation_is_published_as_an_event_and_makes_no_trajectory(
    bus: Bus, topology: Topology, settings: Settings, temperature: float
) -> None:
    rows = dataset_rows(Arithmetic(), seed=0, num_demonstrations=0)["heldout.jsonl"][:700]
    folder = Path(settings.data_dir) / "data"
    await asyncio.to_thread(folder.mkdir)
    body = b"\n".join(msgspec.json.encode(row) for row in rows)
    await asyncio.to_thread((folder / "heldout.jsonl").write_bytes, body)
    sampler = Sampler(temperature=temperature, max_new_tokens=4)
    task = msgspec.structs.replace(group("evaluation-1", kind="evaluation", num_samples=1), sampler=sampler)
    events: list[dict[str, Any]] = []

    async def receive(data: bytes, _headers: dict[str, str]) -> None:
        events.append(msgspec.json.decode(data))

    await bus.subscribe(topology.event("evaluation"), receive)
    await announce_policy(bus, topology, 6, char_lm_params(0))
    await give(bus, topology, [task, group("task-1")])
    spec = topology.rollout_consumer("arithmetic", ack_wait_s=30.0, max_running=64)
    async with (
        running(environment_main.build, EnvironmentConfig(), make_context("environment", settings, bus=bus)),
        running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context,
    ):
        await until(lambda: bool(events))
        await emptied(bus, topology, "TASKS")
        await until(lambda: context.stats.value(statistics.EVALUATIONS) == 1)
    [event] = events
    assert (event["version"], event["num_problems"], event["temperature"]) == ("0-a@6", 700, temperature)
    assert 0.0 <= event["solved_share"] <= event["mean_reward"] <= 1.0
    assert context.stats.value(statistics.EVALUATION_SOLVED_SHARE) == event["solved_share"]
    assert context.stats.snapshot(at_s=0.0).labels["evaluation_version"] == "0-a@6"
    scored = await read(bus, topology.trajectory_consumer(0), 1)
    assert [record.task_id for record in decode_frame(scored[0].data)] == ["task-1", "task-1"]
    assert spec.durable.stream == topology.stream("ROLLOUTS")


async def test_evaluation_without_problems_is_tried_twice_and_rollouts_continue(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, char_lm_params(0))
    await give(bus, topology, [group("evaluation-1", kind="evaluation"), group("task-1")])
    spec = topology.rollout_consumer("arithmetic", ack_wait_s=30.0, max_running=64)
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        [message] = await read(bus, spec, 1)
        await emptied(bus, topology, "TASKS")
    assert context.stats.value(statistics.EVALUATIONS_FAILED) == 2
    assert decode_frame(message.data)[0].task_id == "task-1"


async def test_policy_that_arrives_while_a_group_is_written_is_recorded_token_by_token(
    bus: Bus, topology: Topology, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine blocks after its second token until the next policy arrives: exactly one boundary, at 2."""
    from threading import Event

    from tidegate.models.sampling import Generation

    step, written, go_on = Generation.step, Event(), Event()

    def held(generation: Generation) -> None:
        step(generation)
        if generation.num_steps == 2:
            written.set()
            assert go_on.wait(HOLD_S)

    monkeypatch.setattr(Generation, "step", held)
    await announce_policy(bus, topology, 0, char_lm_params(0))
    await give(bus, topology, [group("task-1", num_samples=32)])
    spec = topology.rollout_consumer("arithmetic", ack_wait_s=30.0, max_running=64)
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        assert await asyncio.to_thread(written.wait, HOLD_S)
        await announce_policy(bus, topology, 1, char_lm_params(1))
        await until(lambda: context.stats.value(statistics.SERVING_STEP) == 1)
        go_on.set()
        [message] = await read(bus, spec, 1)
    records = decode_frame(message.data)
    long = [record for record in records if record.num_steps > 2]
    assert long, "some completion goes on past the swap"
    for record in long:
        assert [(span.version.step, span.start) for span in record.spans] == [(0, 0), (1, 2)]
    for record in records:
        validate_trajectory(record, run_id=settings.run)
        assert np.isfinite(record.tensors["behavior_logprobs"]).all()
    assert context.stats.value(statistics.SWAPS) == 2
