"""Tasks whose deliveries end without a result: offered again for as long as it may help, then dropped with the reason.

JetStream's own limit on deliveries would keep such a task in TASKS, delivered to no one: it would count as running
until the deadline of the task queue's sweep.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.actor.harness import (
    announce_policy,
    emptied,
    failed_loops,
    give,
    group,
    mlp_params,
    segment,
    segments_settings,
    trajectories,
)
from tests.integration.environment.store import FakeStore
from tests.support.broker import Broker
from tests.support.deliveries import lose_deliveries
from tests.support.service_harness import make_context, running, until
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.port import Completed, EngineControl, Rollouts
from tidegate.catalogue import actor as statistics
from tidegate.core.deliveries import DELIVERIES_MAX, DELIVERIES_UNTIL_FAILED
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.core.records import PolicySnapshot, Sampler, Task
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.service import ServiceContext, ServiceParts
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration
CONFIG = ActorConfig(slots=1, prefetch=1, ack_wait_s=30.0, retry_delay_s=0.0)


class BrokenEngine:
    """Refuses every task, or fails at it."""

    def __init__(self, *, refuses: TidegateError | None = None, fails: TidegateError | None = None) -> None:
        self._refuses = refuses
        self._fails = fails
        self.num_checked = 0

    def check_policy(self, snapshot: PolicySnapshot) -> None: ...

    def check_task(self, task: Task) -> None:
        self.num_checked += 1
        if self._refuses is not None:
            raise self._refuses

    def generate(self, tasks: Sequence[Task]) -> list[Rollouts]:
        assert self._fails is not None
        raise self._fails

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        raise AssertionError("no evaluation is given")

    def close(self) -> None: ...


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return segments_settings(tmp_path, nats)


async def lost_to_killed_actors(bus: Bus, topology: Topology, *, num_tasks: int, times: int) -> None:
    spec = topology.task_consumer("default", ack_wait_s=30.0, max_running=num_tasks)
    await lose_deliveries(bus, spec, num_messages=num_tasks, times=times)


async def run_engine(context: ServiceContext, engine: BrokenEngine, *, until_dropped: FakeStore) -> None:
    """One actor with an engine, until a task was dropped."""

    async def build(context: ServiceContext, config: ActorConfig) -> ServiceParts:
        return main.assemble(context, config, engine=engine, control=EngineControl())

    async with running(build, CONFIG, context):
        await until(lambda: bool(until_dropped.dropped))


async def test_tasks_of_actors_that_are_killed_again_and_again_are_delivered_and_run(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1"), segment("task-2")])
    await lost_to_killed_actors(bus, topology, num_tasks=2, times=DELIVERIES_MAX - 2)
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)):
        records = await trajectories(bus, topology, 2)
        await emptied(bus, topology, "TASKS")
    assert {record.task_id for record in records} == {"task-1", "task-2"}


async def test_task_that_ends_every_actor_is_dropped_unrun_and_makes_room_for_others(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    await lost_to_killed_actors(bus, topology, num_tasks=1, times=DELIVERIES_MAX)
    await give(bus, topology, [segment("task-2")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        records = await trajectories(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
        assert context.stats.value(statistics.FAILED) == 1
    assert [record.task_id for record in records] == ["task-2"]
    assert set(store.dropped) == {"task-1.0"}
    reason, detail = store.dropped["task-1.0"]
    assert reason == "failed"
    assert detail.startswith(f"delivered {DELIVERIES_MAX} times without a result")


async def test_task_that_is_refused_at_every_delivery_is_dropped_with_the_last_refusal(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    engine = BrokenEngine(refuses=TidegateError("it needs a display"))
    context = make_context("actor", settings, bus=bus)
    await run_engine(context, engine, until_dropped=store)
    await emptied(bus, topology, "TASKS")
    assert engine.num_checked == DELIVERIES_UNTIL_FAILED
    assert store.dropped["task-1.0"] == (
        "failed",
        f"failed at delivery {DELIVERIES_UNTIL_FAILED}: it needs a display.",
    )
    assert context.stats.snapshot(at_s=0.0).labels["task_refusal"] == "it needs a display."


async def test_task_whose_errors_are_temporary_is_tried_more_often(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    engine = BrokenEngine(refuses=UnavailableError("its environment is away"))
    await run_engine(make_context("actor", settings, bus=bus), engine, until_dropped=store)
    assert engine.num_checked == DELIVERIES_MAX
    assert "its environment is away" in store.dropped["task-1.0"][1]


async def test_task_at_which_engines_fail_is_dropped_with_the_error_that_ends_its_last_actor(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    """Only the task that ran; one that waited behind it is released."""
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    await lost_to_killed_actors(bus, topology, num_tasks=1, times=DELIVERIES_UNTIL_FAILED - 1)
    await give(bus, topology, [segment("task-2")])
    engine = BrokenEngine(fails=TidegateError("the environment keeps failing"))
    assert await failed_loops(make_context("actor", settings, bus=bus), CONFIG, engine=engine) == {"generate"}
    assert set(store.dropped) == {"task-1.0"}
    assert store.dropped["task-1.0"][1].endswith("the environment keeps failing.")
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)):
        [record] = await trajectories(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
    assert record.task_id == "task-2"


async def test_evaluation_that_ends_every_actor_is_given_up(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [group("evaluation-1", kind="evaluation", num_samples=1)])
    await lost_to_killed_actors(bus, topology, num_tasks=1, times=DELIVERIES_MAX)
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await emptied(bus, topology, "TASKS")
        assert context.stats.value(statistics.EVALUATIONS_FAILED) == 0
    assert store.dropped == {}, "an evaluation was never admitted"
