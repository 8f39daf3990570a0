"""Actors whose actions come from the inference service: what they record, and what the loss of the service costs."""

import asyncio
import threading
from collections.abc import Callable, Mapping
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
    segment,
    trajectories,
    version,
)
from tests.integration.inference.serving import Service, inference_settings, serving
from tests.support.broker import Broker
from tests.support.environments import CARTPOLE
from tests.support.service_harness import make_context, running, until
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.exchange import StepExchange
from tidegate.actor.engines.q_acting import exploration_rates
from tidegate.algorithms.first_priorities import first_priorities
from tidegate.algorithms.q_learning_settings import QActingSettings
from tidegate.catalogue import actor as statistics
from tidegate.catalogue import inference as inference_statistics
from tidegate.core.records import Task, Trajectory, VersionSpan
from tidegate.core.spaces import PRIORITIES
from tidegate.inference.config import InferenceConfig
from tidegate.models.epsilon_greedy import EpsilonGreedy
from tidegate.models.policies import build_policy
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import PolicyConfig, Settings
from tidegate.runtime.service import ServiceContext
from tidegate.wire.subjects import Topology
from tidegate.wire.validate import validate_trajectory
from tidegate.wire.vector_step import ActedStep, ActStep

pytestmark = pytest.mark.integration
CONFIG = ActorConfig(engine="inference_env", ack_wait_s=4.0, retry_delay_s=0.2)


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return inference_settings(tmp_path, nats)


def long_segment(task_id: str, *, num_steps: int, required: int = 0) -> Task:
    return msgspec.structs.replace(segment(task_id, required=required), unroll_length=num_steps)


def labels_of(context: ServiceContext) -> Mapping[str, str]:
    return context.stats.snapshot(at_s=0.0).labels


def assert_logprobs_are_of_the_spans(record: Trajectory, settings: Settings) -> None:
    """Each step's actions come from the version that its span names."""
    policy = build_policy(CARTPOLE, settings.policy)
    for span in record.spans:
        rows = slice(span.start, span.stop)
        seen = {"observations": record.tensors["observations"][rows]}
        outputs = policy.action_outputs(mlp_params(span.version.step), seen, np)
        logprobs = policy.actions.logprobs(outputs, record.tensors["actions"][rows], np)
        np.testing.assert_allclose(record.tensors["behavior_logprobs"][rows], logprobs, atol=1e-5)


async def test_segment_of_an_actor_without_weights_is_valid_and_names_the_version_that_acted(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 5, mlp_params(5))
    await give(bus, topology, [segment("task-1")])
    async with (
        serving(settings, bus) as service,
        running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context,
    ):
        [record] = await trajectories(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
        await until(lambda: context.stats.value(statistics.INFERENCE_WAIT_S) > 0)
    validate_trajectory(record, run_id=settings.run)
    assert record.spans == (VersionSpan(version(5), 0, 8),)
    assert record.num_steps == 32
    assert_logprobs_are_of_the_spans(record, settings)
    assert context.stats.value(statistics.SERVING_STEP) == 5
    assert context.stats.value(statistics.WEIGHT_PULL_MS) == 0, "no weights were pulled"
    assert service.stats.value(inference_statistics.STEPS) == 32


async def test_q_network_of_the_service_is_explored_and_valued_by_its_actor(
    bus: Bus, topology: Topology, tmp_path: Path, nats: Broker
) -> None:
    settings = inference_settings(tmp_path, nats, policy=PolicyConfig(kind="q_mlp", hidden=(8,)))
    policy = build_policy(CARTPOLE, settings.policy)
    params = policy.init_params(np.random.default_rng(5))
    await announce_policy(bus, topology, 5, params)
    task = long_segment("task-1", num_steps=40)
    await give(bus, topology, [task])
    acting = QActingSettings(n_steps=3, epsilon=0.5)
    config = msgspec.structs.replace(CONFIG, q_learning=acting)
    async with (
        serving(settings, bus) as service,
        running(main.build, config, make_context("actor", settings, bus=bus)),
    ):
        [record] = await trajectories(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
    validate_trajectory(record, run_id=settings.run)
    tensors = record.tensors
    assert record.spans == (VersionSpan(version(5), 0, 40),)
    rates = exploration_rates(4, acting, np.random.default_rng([task.seed, 2]))
    values = policy.action_outputs(params, {"observations": tensors["observations"]}, np)
    explored = policy.actions
    assert isinstance(explored, EpsilonGreedy)
    logprobs = explored.with_epsilons(rates).logprobs(values[:-1], tensors["actions"], np)
    np.testing.assert_allclose(tensors["behavior_logprobs"], logprobs, atol=1e-5)
    expected = first_priorities(values, tensors, acting, settings.workload.reward)
    np.testing.assert_allclose(tensors[PRIORITIES], expected, atol=1e-4)
    assert service.stats.value(inference_statistics.REQUESTS) == 41, "one more values the last observations"


async def test_task_waits_for_the_version_it_requires_until_the_service_acts_with_it(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await give(bus, topology, [segment("task-1", required=1)])
    async with (
        serving(settings, bus),
        running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context,
    ):
        await announce_policy(bus, topology, 0, mlp_params(0))
        await until(lambda: statistics.SERVING_VERSION in labels_of(context))
        await asyncio.sleep(1.0)
        assert await count_of(bus, topology, "TRAJECTORIES") == 0
        await announce_policy(bus, topology, 1, mlp_params(1))
        [record] = await trajectories(bus, topology, 1)
    assert record.spans == (VersionSpan(version(1), 0, 8),)


async def test_version_that_arrives_inside_a_segment_acts_from_the_next_step_on(
    bus: Bus, topology: Topology, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine blocks after some steps until the next version acts."""
    ask, arrived = StepExchange.ask, threading.Event()

    def held(exchange: StepExchange, step: ActStep, *, give_up: Callable[[], bool]) -> ActedStep | None:
        if step.number == 30:
            assert arrived.wait(60.0)
        return ask(exchange, step, give_up=give_up)

    monkeypatch.setattr(StepExchange, "ask", held)
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [long_segment("task-1", num_steps=400)])
    async with (
        serving(settings, bus) as service,
        running(main.build, CONFIG, make_context("actor", settings, bus=bus)),
    ):
        await until(lambda: service.stats.value(inference_statistics.REQUESTS) > 20)
        await announce_policy(bus, topology, 1, mlp_params(1))
        await until(lambda: service.stats.value(inference_statistics.SERVING_STEP) == 1)
        arrived.set()
        [record] = await trajectories(bus, topology, 1)
    assert [span.version for span in record.spans] == [version(0), version(1)]
    assert record.spans[0].stop == record.spans[1].start
    assert_logprobs_are_of_the_spans(record, settings)


@pytest.mark.parametrize("end", ["kill", "drain"])
async def test_segment_continues_at_the_next_process_of_the_service(
    bus: Bus, topology: Topology, settings: Settings, end: str
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [long_segment("task-1", num_steps=600)])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        first = Service(make_context("inference", settings, bus=bus), InferenceConfig())
        await first.start()
        await until(lambda: first.stats.value(inference_statistics.REQUESTS) > 50)
        await (first.kill() if end == "kill" else first.drain())
        answered = first.stats.value(inference_statistics.REQUESTS)
        assert answered < 600
        # Published while no service runs: the next process acts with it.
        await announce_policy(bus, topology, 1, mlp_params(1))
        async with serving(settings, bus) as second:
            [record] = await trajectories(bus, topology, 1)
            asked = second.stats.value(inference_statistics.REQUESTS)
    validate_trajectory(record, run_id=settings.run)
    assert [span.version for span in record.spans] == [version(0), version(1)]
    assert_logprobs_are_of_the_spans(record, settings)
    # Only a step whose answer was lost on its way is asked twice.
    assert 600 <= answered + asked <= 601
    assert context.stats.value(statistics.TASKS_RELEASED) == 0
    assert context.stats.value(statistics.INFERENCE_LOSSES) >= 1


async def test_actor_without_a_service_takes_no_tasks_and_gives_up_what_it_has_after_its_wait(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    config = ActorConfig(engine="inference_env", ack_wait_s=4.0, inference_wait_s=1.0, prefetch=0)
    async with running(main.build, config, make_context("actor", settings, bus=bus)) as context:
        first = Service(make_context("inference", settings, bus=bus), InferenceConfig())
        await first.start()
        await give(
            bus, topology, [long_segment("task-1", num_steps=2000), long_segment("task-2", num_steps=8)]
        )
        await until(lambda: first.stats.value(inference_statistics.REQUESTS) > 20)
        await first.kill()
        await until(lambda: context.stats.value(statistics.INFERENCE_GIVEN_UP) == 1)
        await until(lambda: context.stats.value(statistics.TASKS_RELEASED) == 1)
        assert await count_of(bus, topology, "TASKS") == 2
        async with serving(settings, bus):
            records = await trajectories(bus, topology, 2)
    assert {record.task_id for record in records} == {"task-1", "task-2"}
    for record in records:
        assert_logprobs_are_of_the_spans(record, settings)


async def test_two_actors_share_one_service_and_their_records_stay_apart(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    wider = settings.addresses | {"actor": [*settings.addresses["actor"], *settings.addresses["learner"]]}
    settings = msgspec.structs.replace(settings, addresses=wider)
    await announce_policy(bus, topology, 0, mlp_params(0))
    contexts = [make_context("actor", settings, bus=bus, index=index) for index in range(2)]
    # One task at a time each, from when both can take one: neither makes all of them before the other has started.
    config = msgspec.structs.replace(CONFIG, prefetch=0)
    async with (
        serving(settings, bus) as service,
        running(main.build, config, contexts[0]),
        running(main.build, config, contexts[1]),
    ):
        await until(lambda: all(statistics.SERVING_VERSION in labels_of(context) for context in contexts))
        await give(bus, topology, [long_segment(f"task-{number}", num_steps=100) for number in range(6)])
        records = await trajectories(bus, topology, 6)
    assert {record.actor_id for record in records} == {"actor-0", "actor-1"}
    for record in records:
        validate_trajectory(record, run_id=settings.run)
        assert_logprobs_are_of_the_spans(record, settings)
    assert service.stats.value(inference_statistics.STEPS) == 6 * 100 * 4


async def test_draining_actor_finishes_its_segment(bus: Bus, topology: Topology, settings: Settings) -> None:
    # Half of it is for the segment.
    settings = msgspec.structs.replace(settings, drain_timeout_s=120.0)
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [long_segment("task-1", num_steps=100)])
    async with serving(settings, bus) as service:
        async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)):
            await until(lambda: service.stats.value(inference_statistics.REQUESTS) > 5)
        [record] = await trajectories(bus, topology, 1)
        await until(lambda: service.stats.value(inference_statistics.STREAMS) == 0)
    assert record.task_id == "task-1"


async def test_memory_of_a_policy_travels_with_each_step(
    bus: Bus, topology: Topology, tmp_path: Path, nats: Broker
) -> None:
    policy = PolicyConfig(kind="mlp", hidden=(8,), memory="gru", memory_units=3)
    settings = inference_settings(tmp_path, nats, policy=policy)
    params = build_policy(CARTPOLE, policy).init_params(np.random.default_rng(0))
    await announce_policy(bus, topology, 0, params)
    await give(bus, topology, [segment("task-1"), segment("task-2")])
    async with (
        serving(settings, bus),
        running(main.build, CONFIG, make_context("actor", settings, bus=bus)),
    ):
        first, second = await trajectories(bus, topology, 2)
    assert not first.tensors["memory"].any()
    assert second.tensors["memory"].any()


async def test_evaluation_plays_the_newest_weights_which_only_it_needs(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 3, mlp_params(3))
    task = msgspec.structs.replace(segment("e-1"), kind="evaluation")
    await give(bus, topology, [task, segment("task-1")])
    config = msgspec.structs.replace(CONFIG, evaluation_episodes=4)
    async with (
        serving(settings, bus) as service,
        running(main.build, config, make_context("actor", settings, bus=bus)) as context,
    ):
        await until(lambda: context.stats.value(statistics.EVALUATIONS) == 1)
        [record] = await trajectories(bus, topology, 1)
    assert context.stats.value(statistics.EVALUATION_EPISODES) == 4
    assert context.stats.snapshot(at_s=0.0).labels[statistics.EVALUATION_VERSION] == str(version(3))
    assert record.task_id == "task-1"
    assert service.stats.value(inference_statistics.STEPS) == 32, (
        "episodes of an evaluation ask for no actions"
    )
