"""Rollouts of tokens on a real broker: they survive the drain or kill of their actor, token for token."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from tests.integration.actor.harness import (
    RUN,
    announce_policy,
    count_of,
    emptied,
    give,
    group,
    progress_cleared,
    read,
    text_settings,
    trajectories,
    version,
)
from tests.support.broker import Broker
from tests.support.service_harness import create_consumers, make_context, running, until
from tests.support.token_engine import ScriptedTokenEngine
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.token_port import Continuation, TokenRequest
from tidegate.actor.main import assemble_tokens
from tidegate.catalogue import actor as statistics
from tidegate.core.ids import TaskId
from tidegate.core.records import PolicySnapshot, Sampler, Task, Trajectory
from tidegate.environment import main as environment_main
from tidegate.environment.config import EnvironmentConfig
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.completion_batch import completion_logprobs, pack_completions
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import Settings
from tidegate.runtime.consumer import Delivery
from tidegate.runtime.service import ServiceContext, ServiceParts
from tidegate.wire.frame import decode_frame
from tidegate.wire.progress import decode_progress
from tidegate.wire.subjects import Topology
from tidegate.wire.validate import validate_trajectory

pytestmark = pytest.mark.integration
CONFIG = ActorConfig(slots=4, prefetch=1, ack_wait_s=2.0, retry_delay_s=0.2, keep_progress_s=0.1)
NUM_TOKENS = 40


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    """Two samples of at most 40 tokens each."""
    settings = text_settings(tmp_path, nats)
    sampler = Sampler(max_new_tokens=NUM_TOKENS)
    return msgspec.structs.replace(
        settings,
        workload=msgspec.structs.replace(settings.workload, num_samples=2, sampler=sampler),
        addresses=settings.addresses | {"actor": settings.addresses["actor"] * 2},
    )


class Actor:
    """An actor around a scripted engine, on a connection of its own."""

    def __init__(self) -> None:
        self.engine: ScriptedTokenEngine | None = None
        self.hold_at: int | None = None

    async def build(self, context: ServiceContext, config: ActorConfig) -> ServiceParts:
        control = EngineControl()
        self.engine = ScriptedTokenEngine(control, slots=config.slots, stop_share=0.0)
        self.engine.hold_at = self.hold_at
        return assemble_tokens(context, config, engine=self.engine, control=control)

    def num_held(self) -> int:
        return len(self.engine.held) if self.engine is not None else 0


@pytest.fixture
async def other_bus(nats: Broker, topology: Topology) -> AsyncIterator[Bus]:
    """The connection of another actor."""
    bus = await Bus.connect(nats.url, name="other", topology=topology, clock=SystemClock())
    yield bus
    await bus.close()


@asynccontextmanager
async def killed_at_the_end(actor: Actor, context: ServiceContext) -> AsyncGenerator[ServiceContext]:
    """An actor whose process dies: nothing is flushed, released or reported."""
    await create_consumers(context, CONFIG)
    parts = await actor.build(context, CONFIG)
    loops = [asyncio.ensure_future(loop()) for loop in parts.loops.values()]
    try:
        yield context
    finally:
        await context.bus.close()
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


def task(name: str) -> Task:
    return msgspec.structs.replace(group(name), sampler=Sampler(max_new_tokens=NUM_TOKENS))


async def rollouts(bus: Bus, topology: Topology, count: int) -> list[Trajectory]:
    spec = topology.rollout_consumer("arithmetic", ack_wait_s=30.0, max_running=64)
    records = [record for delivery in await read(bus, spec, count) for record in decode_frame(delivery.data)]
    for record in records:
        validate_trajectory(record, run_id=RUN)
    return records


async def kept_tokens(bus: Bus, topology: Topology, name: str) -> int:
    """Tokens of a task in PROGRESS."""
    stored = await bus.last(topology.stream("PROGRESS"), topology.progress(TaskId(name)))
    return sum(len(each.tokens) for each in decode_progress(stored.data).samples) if stored else 0


async def undisturbed(record: Trajectory) -> tuple[list[int], list[float]]:
    """The tokens and logprobs of an uninterrupted sample."""
    control = EngineControl()
    control.newest = PolicySnapshot(version(0), {})
    engine, written = ScriptedTokenEngine(control, stop_share=0.0), Continuation()
    request = TokenRequest(
        request_id=record.trajectory_id,
        context=tuple(record.tensors["prompt_tokens"].tolist()),
        sampler=Sampler(max_new_tokens=NUM_TOKENS),
        stop_ids=engine.tokenizer.stop_ids,
    )
    await engine.generate(request, written)
    return written.tokens, written.logprobs


async def assert_undisturbed(records: list[Trajectory]) -> None:
    for record in records:
        tokens, logprobs = await undisturbed(record)
        assert record.tensors["tokens"].tolist() == tokens
        np.testing.assert_array_equal(record.tensors["behavior_logprobs"], np.array(logprobs, np.float32))


async def test_groups_run_concurrently_and_each_is_published_when_done(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, {"w": np.zeros(1, np.float32)})
    await give(bus, topology, [task(f"task-{number}") for number in range(6)])
    context = make_context("actor", settings, bus=bus)
    async with running(Actor().build, CONFIG, context):
        records = await rollouts(bus, topology, 6)
        await emptied(bus, topology, "TASKS")
    assert {record.task_id for record in records} == {f"task-{number}" for number in range(6)}
    assert {record.length_tokens for record in records} == {NUM_TOKENS}
    assert context.stats.value(statistics.TRAJECTORIES) == 12
    assert context.stats.value(statistics.TOKENS_LOST) == 0


async def test_killed_actor_loses_only_tokens_without_a_checkpoint(
    bus: Bus, other_bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, {"w": np.zeros(1, np.float32)})
    await give(bus, topology, [task("task-1")])
    first = Actor()
    first.hold_at = 25
    async with killed_at_the_end(first, make_context("actor", settings, bus=other_bus)):
        await until(lambda: first.num_held() == 2)
        while await kept_tokens(bus, topology, "task-1") < 50:
            await asyncio.sleep(0.02)
    second = Actor()
    context = make_context("actor", settings, bus=bus, index=1)
    async with running(second.build, CONFIG, context):
        resumed = await rollouts(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
        await progress_cleared(bus, topology, "task-1")
    assert context.stats.value(statistics.TASKS_REDELIVERED) == 1
    assert context.stats.value(statistics.TOKENS_RESUMED) == 50
    assert second.engine is not None
    assert [len(request.context) for request in second.engine.requests] == [
        len(resumed[0].tensors["prompt_tokens"]) + 25
    ] * 2
    await assert_undisturbed(resumed)


async def test_draining_actor_releases_its_rollouts_without_losing_a_token(
    bus: Bus, other_bus: Bus, topology: Topology, settings: Settings
) -> None:
    settings = msgspec.structs.replace(settings, drain_timeout_s=0.6)
    await announce_policy(bus, topology, 0, {"w": np.zeros(1, np.float32)})
    await give(bus, topology, [task("task-1"), task("task-2")])
    first = Actor()
    first.hold_at = 17
    config = msgspec.structs.replace(CONFIG, keep_progress_s=100.0)
    context = make_context("actor", settings, bus=other_bus)
    async with running(first.build, config, context):
        await until(lambda: first.num_held() == 4)
        assert await count_of(bus, topology, "PROGRESS") == 0
    assert context.stats.value(statistics.TASKS_RELEASED) == 2
    assert await count_of(bus, topology, "PROGRESS") == 2
    await announce_policy(bus, topology, 1, {"w": np.ones(1, np.float32)})
    context = make_context("actor", settings, bus=bus, index=1)
    async with running(Actor().build, CONFIG, context):
        await until(lambda: context.stats.value(statistics.SERVING_STEP) == 1)
        records = await rollouts(bus, topology, 2)
        await emptied(bus, topology, "TASKS")
        await progress_cleared(bus, topology, "task-1", "task-2")
    assert context.stats.value(statistics.TOKENS_RESUMED) == 4 * 17
    assert context.stats.value(statistics.TOKENS_LOST) == 0
    await assert_undisturbed(records)
    for record in records:
        assert record.spans[0].version == version(0)
        assert record.spans[0].stop >= 17
        assert record.spans[-1].stop == NUM_TOKENS


async def test_rollout_longer_than_its_delivery_is_never_given_to_another(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, {"w": np.zeros(1, np.float32)})
    await give(bus, topology, [task("task-1")])
    actor = Actor()
    actor.hold_at = 5
    context = make_context("actor", settings, bus=bus)
    async with running(actor.build, CONFIG, context):
        await until(lambda: actor.num_held() == 2)
        await asyncio.sleep(1.5 * CONFIG.ack_wait_s)
        assert actor.engine is not None
        actor.engine.hold_at = None
        await rollouts(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
    assert context.stats.value(statistics.TASKS_REDELIVERED) == 0
    assert context.stats.value(statistics.BUSY_S) >= 2.0


async def test_redelivered_task_of_the_same_actor_is_generated_and_reported_once(
    bus: Bus, topology: Topology, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard(_delivery: Delivery) -> None:
        """A heartbeat while the broker is away."""

    monkeypatch.setattr(Delivery, "in_progress", unheard)
    await announce_policy(bus, topology, 0, {"w": np.zeros(1, np.float32)})
    await give(bus, topology, [task("task-1")])
    actor = Actor()
    actor.hold_at = 5
    context = make_context("actor", settings, bus=bus)
    async with running(actor.build, CONFIG, context):
        await until(lambda: context.stats.value(statistics.TASKS_REDELIVERED) >= 2)
        assert actor.engine is not None
        assert len(actor.engine.requests) == 2, "one for each sample"
        actor.engine.hold_at = None
        records = await rollouts(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
    assert context.stats.value(statistics.TASKS_DUPLICATE) >= 2
    assert context.stats.value(statistics.TRAJECTORIES) == 2
    await assert_undisturbed(records)


async def test_model_in_process_writes_groups_and_evaluations_for_the_same_actor(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    """The engine that the run file names, with the real model: what it says of its tokens is what they are."""
    model = CharLm(CharLmSpec(d_model=16, num_layers=2, num_heads=2, context_length=64))
    policy = msgspec.structs.replace(settings.policy, context_length=64)
    settings = msgspec.structs.replace(settings, policy=policy)
    config = msgspec.structs.replace(CONFIG, engine="torch", evaluation_problems_max=6)
    heldout = Path(settings.data_dir) / "data" / "heldout.jsonl"
    heldout.parent.mkdir(parents=True)
    heldout.write_bytes(b'{"prompt_id": "1+1", "prompt": "01+01=", "answer": "002"}\n' * 6)
    await announce_policy(bus, topology, 0, model.to_arrays())
    evaluation = msgspec.structs.replace(task("e-1"), kind="evaluation")
    await give(bus, topology, [task("task-1"), evaluation, task("task-2")])
    context = make_context("actor", settings, bus=bus)
    environment = make_context("environment", settings, bus=bus)
    async with (
        running(main.build, config, context),
        running(environment_main.build, EnvironmentConfig(), environment),
    ):
        records = await trajectories(bus, topology, 2)
        await until(lambda: context.stats.value(statistics.EVALUATIONS) == 1)
        await emptied(bus, topology, "TASKS")
    assert len(records) == 4
    for record in records:
        prompt, tokens = record.tensors["prompt_tokens"], record.tensors["tokens"]
        batch = pack_completions([prompt], [tokens], group_index=[0])
        with torch.no_grad():
            logprobs = completion_logprobs(model, batch)[0].numpy()
        np.testing.assert_allclose(record.tensors["behavior_logprobs"], logprobs, atol=1e-4)
