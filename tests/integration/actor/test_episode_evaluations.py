"""Evaluations of segments by an actor on a real broker: whole greedy episodes, one version, no trajectory."""

from pathlib import Path
from typing import Any

import msgspec
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
    version,
)
from tests.support.broker import Broker
from tests.support.service_harness import make_context, running, until
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.actor.evaluation import episodes
from tidegate.catalogue import actor as statistics
from tidegate.core.records import Task
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.vector_envs.episodes import PlayedEpisode, play_episodes
from tidegate.wire.frame import decode_frame
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration
CONFIG = ActorConfig(ack_wait_s=2.0, retry_delay_s=0.2, evaluation_episodes=6)


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return segments_settings(tmp_path, nats)


@pytest.fixture
async def events(bus: Bus, topology: Topology) -> list[dict[str, Any]]:
    """The events of evaluations, as they arrive."""
    received: list[dict[str, Any]] = []

    async def receive(data: bytes, _headers: dict[str, str]) -> None:
        received.append(msgspec.json.decode(data))

    await bus.subscribe(topology.event("evaluation"), receive)
    return received


def evaluation(task_id: str, *, required: int = 0, seed: int = 7) -> Task:
    return msgspec.structs.replace(segment(task_id, required=required), kind="evaluation", seed=seed)


async def test_whole_episodes_are_played_and_reported_and_make_no_trajectory(
    bus: Bus, topology: Topology, settings: Settings, events: list[dict[str, Any]]
) -> None:
    await announce_policy(bus, topology, 6, mlp_params(0))
    await give(bus, topology, [evaluation("e-1"), segment("task-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: bool(events))
        [message] = await read(bus, topology.trajectory_consumer(0), 1)
        await emptied(bus, topology, "TASKS")
        await until(lambda: context.stats.value(statistics.EVALUATIONS) == 1)
    [event] = events
    assert (event["version"], event["num_episodes"], event["num_cut"], event["num_failed"]) == (
        "0-a@6",
        6,
        0,
        0,
    )
    # CartPole gives 1 a step, and its shortest episodes have about eight.
    assert 8 <= event["min_return"] <= event["mean_return"] <= event["max_return"] <= 500
    assert event["mean_length"] == event["mean_return"]
    assert context.stats.value(statistics.EVALUATION_RETURN) == event["mean_return"]
    assert context.stats.value(statistics.EVALUATION_RETURN_MIN) == event["min_return"]
    assert context.stats.value(statistics.EVALUATION_EPISODES) == 6
    assert context.stats.value(statistics.EVALUATION_S) > 0
    assert context.stats.snapshot(at_s=0.0).labels["evaluation_version"] == "0-a@6"
    assert [record.task_id for record in decode_frame(message.data)] == ["task-1"]


async def test_versions_are_compared_on_the_same_episodes(
    bus: Bus, topology: Topology, settings: Settings, events: list[dict[str, Any]]
) -> None:
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        for step, params in enumerate((mlp_params(0), mlp_params(1), mlp_params(0))):
            await announce_policy(bus, topology, step, params)
            await give(bus, topology, [evaluation(f"e-{step}", required=step)])
            await until(lambda: context.stats.value(statistics.EVALUATIONS) == step + 1)  # noqa: B023
        await until(lambda: len(events) == 3)
    first, other, again = [
        {name: value for name, value in event.items() if name not in ("version", "at_s")} for event in events
    ]
    assert first == again
    assert first != other


async def test_evaluation_that_takes_too_long_fails_once_and_rollouts_continue(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 3, mlp_params(0))
    await give(bus, topology, [evaluation("e-1"), segment("task-1")])
    hasty = msgspec.structs.replace(CONFIG, evaluation_deadline_s=1e-6)
    async with running(main.build, hasty, make_context("actor", settings, bus=bus)) as context:
        await read(bus, topology.trajectory_consumer(0), 1)
        await emptied(bus, topology, "TASKS")
    assert context.stats.value(statistics.EVALUATIONS_FAILED) == 1
    assert context.stats.value(statistics.TASKS_RELEASED) == 0
    problem = context.stats.snapshot(at_s=0.0).labels["evaluation_problem"]
    assert problem.startswith(f"{version(0)}: 4 episodes of the evaluation were still running")


async def test_evaluation_in_which_a_wrapper_raises_fails_and_the_actor_plays_it_again(
    bus: Bus,
    topology: Topology,
    settings: Settings,
    events: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_played = 0

    def raises_once(*args: Any, **options: Any) -> list[PlayedEpisode]:
        nonlocal num_played
        num_played += 1
        if num_played == 1:
            raise IndexError("a wrapper's bug")
        return play_episodes(*args, **options)

    monkeypatch.setattr(episodes, "play_episodes", raises_once)
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [evaluation("e-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: bool(events) or context.stats.value(statistics.TASKS_RELEASED) > 1)
        await emptied(bus, topology, "TASKS")
    assert len(events) == 1
    assert context.stats.value(statistics.EVALUATIONS_FAILED) == 1
    assert context.stats.value(statistics.TASKS_REDELIVERED) == 1


async def test_drain_ends_an_evaluation_at_its_next_step_and_releases_it(
    bus: Bus, topology: Topology, settings: Settings, events: list[dict[str, Any]]
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [evaluation("e-1")])
    endless = msgspec.structs.replace(CONFIG, evaluation_episodes=1_000_000)
    context = make_context("actor", settings, bus=bus)
    async with running(main.build, endless, context):
        await until(lambda: context.stats.value(statistics.BUSY_TASKS) == 1)
    assert events == []
    assert context.stats.value(statistics.TASKS_RELEASED) == 1
    assert await count_of(bus, topology, "TASKS") == 1
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: bool(events))
        await emptied(bus, topology, "TASKS")
    assert context.stats.value(statistics.TASKS_REDELIVERED) == 1
