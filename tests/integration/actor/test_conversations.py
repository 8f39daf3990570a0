"""Episodes of several turns on a real actor and environment workers that may be killed during an episode."""

from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.integration.actor.harness import (
    RUN,
    announce_policy,
    count_of,
    emptied,
    give,
    group,
    progress_cleared,
    text_settings,
)
from tests.integration.actor.harness import trajectories as arrived
from tests.integration.environment.store import FakeStore
from tests.support.broker import Broker, free_port
from tests.support.service_harness import make_context, running, until
from tests.support.token_engine import ScriptedTokenEngine
from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.main import assemble_tokens
from tidegate.catalogue import actor as statistics
from tidegate.core.ids import PromptId
from tidegate.core.records import Sampler, Task, Trajectory
from tidegate.environment import main as environment_main
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.conversations.guess_number import GuessNumber
from tidegate.environment.conversations.tools import NO_TOOLS
from tidegate.environment.tasks.port import Problem
from tidegate.models.char_tokenizer import CharTokenizer
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.service import ServiceContext, ServiceParts
from tidegate.wire.subjects import Topology
from tidegate.wire.validate import validate_trajectory

pytestmark = pytest.mark.integration
CONFIG = ActorConfig(slots=8, prefetch=1, ack_wait_s=2.0, retry_delay_s=0.2, keep_progress_s=0.1)
NUM_SAMPLES = 4
PROBLEM = Problem("to-127-77", "guess 1 to 127:", "77", "to-127")
TURNS = 7


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    """Two environment workers, groups of four, more turns than the game has."""
    settings = text_settings(tmp_path, nats)
    workload = msgspec.structs.replace(
        settings.workload,
        env="guess_number",
        num_samples=NUM_SAMPLES,
        turns_max=TURNS + 5,
        sampler=Sampler(max_new_tokens=400),
    )
    addresses = {
        **settings.addresses,
        "environment": [f"127.0.0.1:{free_port()}" for _ in range(2)],
        "actor": [f"127.0.0.1:{free_port()}" for _ in range(2)],
    }
    return msgspec.structs.replace(settings, workload=workload, addresses=addresses)


async def build(context: ServiceContext, config: ActorConfig) -> ServiceParts:
    """An actor with a slow engine, so that an episode lasts about a second."""
    control = EngineControl()
    engine = ScriptedTokenEngine(control, slots=config.slots, token_s=0.02, stop_share=0.2)
    return assemble_tokens(context, config, engine=engine, control=control)


def task(name: str) -> Task:
    return msgspec.structs.replace(
        group(name, num_samples=NUM_SAMPLES),
        env_id="guess_number",
        prompt_id=PromptId(PROBLEM.prompt_id),
        prompt=PROBLEM.prompt,
        answer=PROBLEM.answer,
        sampler=Sampler(max_new_tokens=400),
    )


def assert_is_an_episode(record: Trajectory) -> None:
    """Check the record's replies against the game, turn by turn."""
    validate_trajectory(record, run_id=RUN)
    tokenizer = CharTokenizer()
    game = GuessNumber().begin(PROBLEM, seed=0, tools=NO_TOOLS)
    tokens, chosen = record.tensors["tokens"], record.tensors["chosen"]
    edges = [0, *(np.flatnonzero(np.diff(chosen)) + 1).tolist(), len(tokens)]
    pieces = [tokenizer.decode(tokens[start:stop].tolist()) for start, stop in pairwise(edges)]
    for turn, reply in zip(pieces[:-1:2], pieces[1::2], strict=True):
        assert game.reply(turn).observation == reply
    last = game.reply(pieces[-1])
    assert last.score is not None
    assert record.reward == last.score.reward
    assert record.reward_components == last.score.components
    assert record.finish_reason == ("turns" if last.truncated else "stop")


async def test_episodes_arrive_scored_and_whole(bus: Bus, topology: Topology, settings: Settings) -> None:
    await announce_policy(bus, topology, 0, {"w": np.zeros(1, np.float32)})
    await give(bus, topology, [task("task-1"), task("task-2"), task("task-3")])
    environments = [make_context("environment", settings, bus=bus, index=index) for index in range(2)]
    context = make_context("actor", settings, bus=bus)
    async with AsyncExitStack() as stack:
        for environment in environments:
            await stack.enter_async_context(running(environment_main.build, EnvironmentConfig(), environment))
        await stack.enter_async_context(running(build, CONFIG, context))
        records = await arrived(bus, topology, 3)
        await emptied(bus, topology, "TASKS")
        await progress_cleared(bus, topology, "task-1", "task-2", "task-3")
    assert len(records) == 12
    assert await count_of(bus, topology, "ROLLOUTS") == 0, "they are scored already"
    for record in records:
        assert_is_an_episode(record)
    assert context.stats.value(statistics.SESSIONS_OPENED) == 12
    assert context.stats.value(statistics.SESSIONS_LOST) == 0


async def test_environment_worker_that_dies_costs_no_episode(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, {"w": np.zeros(1, np.float32)})
    await give(bus, topology, [task("task-1"), task("task-2")])
    environments = [make_context("environment", settings, bus=bus, index=index) for index in range(2)]
    context = make_context("actor", settings, bus=bus)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(environment_main.build, EnvironmentConfig(), environments[1]))
        async with running(environment_main.build, EnvironmentConfig(), environments[0]):
            await stack.enter_async_context(running(build, CONFIG, context))
            await until(lambda: context.stats.value(statistics.SESSIONS_OPENED) == 8)
            await until(lambda: context.stats.value(statistics.TOKENS_WRITTEN) > 0)
        records = await arrived(bus, topology, 2)
        await emptied(bus, topology, "TASKS")
    assert context.stats.value(statistics.SESSIONS_LOST) > 0
    assert context.stats.value(statistics.EPISODES_FAILED) == 0
    for record in records:
        assert_is_an_episode(record)


async def test_draining_actor_releases_its_conversations(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    hurried = msgspec.structs.replace(settings, drain_timeout_s=0.2)
    await announce_policy(bus, topology, 0, {"w": np.zeros(1, np.float32)})
    await give(bus, topology, [task("task-1"), task("task-2")])
    environment = make_context("environment", settings, bus=bus)
    first = make_context("actor", hurried, bus=bus)
    second = make_context("actor", settings, bus=bus, index=1)
    async with running(environment_main.build, EnvironmentConfig(), environment):
        async with running(build, CONFIG, first):
            await until(lambda: first.stats.value(statistics.SESSIONS_OPENED) == 8)
            await until(lambda: first.stats.value(statistics.TOKENS_WRITTEN) > 0)
        assert first.stats.value(statistics.TASKS_RELEASED) > 0
        async with running(build, CONFIG, second):
            records = await arrived(bus, topology, 2)
            await emptied(bus, topology, "TASKS")
    assert second.stats.value(statistics.TOKENS_RESUMED) > 0
    assert second.stats.value(statistics.TOKENS_LOST) == 0
    assert not store.dropped
    assert len(records) == 2 * NUM_SAMPLES
    for record in records:
        assert_is_an_episode(record)
