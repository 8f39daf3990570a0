"""An actor whose engine fails: it ends at once, and what it held goes to another."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.actor.harness import (
    announce_policy,
    failed_loops,
    give,
    mlp_params,
    segment,
    segments_settings,
    trajectories,
)
from tests.support.broker import Broker
from tests.support.service_harness import make_context, running
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.port import Completed, Rollouts
from tidegate.core.errors import DeadlineError
from tidegate.core.records import PolicySnapshot, Sampler, Task
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.consumer import Delivery
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration
# Longer than this test waits for anything: only released tasks reach the second actor.
CONFIG = ActorConfig(slots=1, prefetch=2, ack_wait_s=120.0, retry_delay_s=0.2)


class FailingEngine:
    """Accepts everything and fails at its first batch."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def check_policy(self, snapshot: PolicySnapshot) -> None: ...

    def check_task(self, task: Task) -> None: ...

    def generate(self, tasks: Sequence[Task]) -> list[Rollouts]:
        raise self._error

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        raise self._error

    def close(self) -> None: ...


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return segments_settings(tmp_path, nats)


@pytest.mark.parametrize("error", [DeadlineError("The server is lost"), ZeroDivisionError("a defect")])
async def test_actor_whose_engine_fails_ends_at_once_and_releases_its_tasks(
    bus: Bus, topology: Topology, settings: Settings, error: Exception
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment(f"task-{number}") for number in range(3)])
    failed = await failed_loops(make_context("actor", settings, bus=bus), CONFIG, engine=FailingEngine(error))
    assert failed == {"generate"}
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)):
        records = await trajectories(bus, topology, 3)
    assert {record.task_id for record in records} == {"task-0", "task-1", "task-2"}


async def test_task_that_returns_while_the_engine_has_failed_is_not_kept(
    bus: Bus, topology: Topology, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A released task is delivered again at once, also to the actor that has released it and not ended yet."""
    release = Delivery.nak

    async def slow(delivery: Delivery, delay_s: float = 0.0) -> None:
        await release(delivery, delay_s)
        await asyncio.sleep(0.3)

    monkeypatch.setattr(Delivery, "nak", slow)
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    engine = FailingEngine(ZeroDivisionError("a defect"))
    assert await failed_loops(make_context("actor", settings, bus=bus), CONFIG, engine=engine) == {"generate"}
    monkeypatch.setattr(Delivery, "nak", release)
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)):
        [record] = await trajectories(bus, topology, 1)
    assert record.task_id == "task-1"
