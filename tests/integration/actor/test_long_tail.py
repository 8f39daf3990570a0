"""Slow rollouts on a real broker: their time, those that are cut, and groups that are stopped early."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.actor.harness import (
    announce_policy,
    char_lm_params,
    count_of,
    emptied,
    give,
    group,
    mlp_params,
    read,
    segment,
    segments_settings,
    text_settings,
    trajectories,
    until_counts,
)
from tests.integration.environment.store import FakeStore
from tests.support.broker import Broker
from tests.support.clocks import wall_clock_s
from tests.support.service_harness import make_context, running, until
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.catalogue import actor as statistics
from tidegate.catalogue import publishing
from tidegate.environment import main as environment_main
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.tasks.arithmetic import Arithmetic
from tidegate.environment.tasks.port import Problem, Score
from tidegate.environment.tasks.registry import TASKS
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import LongTailConfig, Settings
from tidegate.wire.frame import decode_frame
from tidegate.wire.subjects import Topology
from tidegate.wire.validate import validate_trajectory

pytestmark = pytest.mark.integration
CONFIG = ActorConfig(slots=1, prefetch=1, ack_wait_s=2.0, retry_delay_s=0.2)
HOLD_S = 60
CUT = LongTailConfig(policy="cut")
FOREVER = "fixed:1000"


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return segments_settings(tmp_path, nats)


def slow(settings: Settings, latency: str, *, long_tail: LongTailConfig | None = None) -> Settings:
    workload = msgspec.structs.replace(settings.workload, latency=latency)
    return msgspec.structs.replace(settings, workload=workload, long_tail=long_tail or LongTailConfig())


async def delivered(bus: Bus, topology: Topology, count: int) -> None:
    """Return once so many tasks are with actors."""
    async with asyncio.timeout(60.0):
        while sum(each.ack_pending for each in await bus.consumers(topology.stream("TASKS"))) < count:
            await asyncio.sleep(0.02)


# -- time --------------------------------------------------------------------------------------------------------------


async def test_rollout_takes_the_time_of_its_workload_and_records_it(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    settings = slow(settings, "fixed:2.5")
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        [record] = await trajectories(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
    assert record.finished_at_s - record.started_at_s >= wall_clock_s(2.5)
    stage = record.stages[-1]
    assert (stage.started_at_s, stage.finished_at_s) == (record.started_at_s, record.finished_at_s)
    assert context.stats.value(statistics.BUSY_S) >= 2.4, "it counts as work: the actor can do nothing else"
    assert context.stats.value(statistics.TASKS_REDELIVERED) == 0, "heartbeats go on past ack_wait_s"


async def test_tasks_of_one_batch_are_published_each_at_its_time(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    workload = msgspec.structs.replace(settings.workload, latency={"slow": FOREVER})
    settings = msgspec.structs.replace(settings, workload=workload, drain_timeout_s=1.0)
    config = msgspec.structs.replace(CONFIG, slots=2)
    await announce_policy(bus, topology, 0, mlp_params(0))
    slow_one = msgspec.structs.replace(segment("task-1", required=1), curriculum_bin="slow")
    await give(bus, topology, [slow_one, segment("task-2", required=1)])
    async with running(main.build, config, make_context("actor", settings, bus=bus)):
        await delivered(bus, topology, 2)
        # Both wait for this version, so that they start together.
        await announce_policy(bus, topology, 1, mlp_params(1))
        [record] = await trajectories(bus, topology, 1)
    assert record.task_id == "task-2"
    await until_counts(bus, topology, TASKS=1)  # the slow one is released


async def test_drain_releases_a_rollout_that_waits_for_its_time(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    settings = msgspec.structs.replace(slow(settings, FOREVER), drain_timeout_s=0.4)
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: context.stats.value(statistics.SWAPS) == 1)
    assert context.stats.value(statistics.TASKS_RELEASED) == 1
    quick = slow(settings, "")
    async with running(main.build, CONFIG, make_context("actor", quick, bus=bus)):
        [record] = await trajectories(bus, topology, 1)
    assert record.task_id == "task-1"


# -- cut ---------------------------------------------------------------------------------------------------------------


async def test_rollout_that_exceeds_the_budget_is_cut_at_once_and_the_actor_continues(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    workload = msgspec.structs.replace(settings.workload, latency={"slow": FOREVER})
    settings = msgspec.structs.replace(settings, workload=workload, long_tail=CUT)  # max_lag 1
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [msgspec.structs.replace(segment("task-1"), curriculum_bin="slow")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: context.stats.value(statistics.SWAPS) == 1)
        await announce_policy(bus, topology, 1, mlp_params(1))
        await until(lambda: context.stats.value(statistics.SERVING_STEP) == 1)
        assert not store.dropped, "one version behind is inside the budget"
        await announce_policy(bus, topology, 2, mlp_params(2))
        await until(lambda: bool(store.dropped))
        await give(bus, topology, [segment("task-2")])
        [record] = await trajectories(bus, topology, 1)
        await emptied(bus, topology, "TASKS")
    assert record.task_id == "task-2"
    [(name, (reason, detail))] = store.dropped.items()
    assert (name, reason) == ("task-1.0", "stale")
    assert "cut at length 32" in detail
    assert "2 versions behind while running (max_lag 1)" in detail
    values = context.stats.snapshot(at_s=0.0).values
    assert values["cut_total"] == values["cut_bin.slow_total"] == values["cut_length.32-63_total"] == 1
    assert 0 < values["cut_s_total"] < 1000
    assert values["trajectories_total"] == 1


async def test_cut_tasks_are_reported_until_the_store_acknowledges(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    settings = slow(settings, FOREVER, long_tail=CUT)
    store.away = True
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: context.stats.value(statistics.SWAPS) == 1)
        await announce_policy(bus, topology, 5, mlp_params(1))
        await until(lambda: context.stats.value(publishing.DROP_REPORT_RETRIES) >= 2)
        assert await count_of(bus, topology, "TASKS") == 1, "not acknowledged before it is terminal"
        store.away = False
        await until(lambda: "task-1.0" in store.dropped)
        await emptied(bus, topology, "TASKS")


async def test_with_the_standard_policy_nothing_is_cut_however_late(
    bus: Bus, topology: Topology, settings: Settings, store: FakeStore
) -> None:
    settings = slow(settings, "fixed:1")
    await announce_policy(bus, topology, 0, mlp_params(0))
    await give(bus, topology, [segment("task-1")])
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await until(lambda: context.stats.value(statistics.SWAPS) == 1)
        await announce_policy(bus, topology, 9, mlp_params(1))
        [record] = await trajectories(bus, topology, 1)
    assert record.task_id == "task-1"
    assert not store.dropped


# -- text --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def text(settings: Settings, nats: Broker) -> Settings:
    return msgspec.structs.replace(
        text_settings(Path(settings.data_dir), nats),
        addresses=settings.addresses,
        staleness=settings.staleness,
    )


async def test_group_is_cut_between_two_tokens_and_ends_whole(
    bus: Bus, topology: Topology, text: Settings, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine blocks before its third token until the group is marked."""
    from threading import Event

    from tidegate.actor.rollouts.deadlines import DeadlineWatch
    from tidegate.models.sampling import Generation

    step, check, written, marked = Generation.step, DeadlineWatch.check, Event(), Event()

    def held(generation: Generation) -> None:
        if generation.num_steps == 2:
            written.set()
            assert marked.wait(HOLD_S)
        step(generation)

    def looked(watch: DeadlineWatch) -> None:
        check(watch)
        if watch.marks:
            marked.set()

    monkeypatch.setattr(Generation, "step", held)
    monkeypatch.setattr(DeadlineWatch, "check", looked)
    text = msgspec.structs.replace(text, long_tail=CUT)
    await announce_policy(bus, topology, 0, char_lm_params(0))
    await give(bus, topology, [group("task-1", num_samples=16)])
    spec = topology.rollout_consumer("arithmetic", ack_wait_s=30.0, max_running=64)
    async with running(main.build, CONFIG, make_context("actor", text, bus=bus)) as context:
        assert await asyncio.to_thread(written.wait, HOLD_S)
        await announce_policy(bus, topology, 7, char_lm_params(1))
        await until(lambda: len(store.dropped) == 16)
        await give(bus, topology, [group("task-2", num_samples=16)])
        [message] = await read(bus, spec, 1)
        await emptied(bus, topology, "TASKS")
    assert {record.task_id for record in decode_frame(message.data)} == {"task-2"}
    assert set(store.dropped) == {f"task-1.{index}" for index in range(16)}
    assert all("cut at length 2" in detail for _, detail in store.dropped.values())
    assert (
        context.stats.value(statistics.CUT_AT_LENGTH.member("2-3"))
        == context.stats.value(statistics.CUT)
        == 16
    )


class Fickle(Arithmetic):
    """Rewards by what was written, never by what is right: about half of all small groups differ."""

    def score(self, problem: Problem, completion: str) -> Score:
        return Score(reward=float(sum(completion.encode()) % 2), components={}, log="fickle")


async def test_groups_rewarded_alike_are_stopped_early_and_all_samples_end_exactly_once(
    bus: Bus, topology: Topology, text: Settings, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "arithmetic", Fickle())
    text = msgspec.structs.replace(text, long_tail=LongTailConfig(early_stop_after=2))
    config = msgspec.structs.replace(CONFIG, slots=4, prefetch=4)
    names = [f"task-{number}" for number in range(24)]
    await announce_policy(bus, topology, 0, char_lm_params(0))
    await give(bus, topology, [group(name, num_samples=6) for name in names])
    trained: dict[str, list[Any]] = {}
    async with (
        running(environment_main.build, EnvironmentConfig(), make_context("environment", text, bus=bus)),
        running(main.build, config, make_context("actor", text, bus=bus)) as context,
    ):
        await emptied(bus, topology, "TASKS")
        num_groups = len(names) - len(store.dropped) // 6
        assert 0 < num_groups < len(names), "some groups differ and some do not"
        for message in await read(bus, topology.trajectory_consumer(0), num_groups):
            records = decode_frame(message.data)
            trained[records[0].task_id] = records
    for records in trained.values():
        assert [record.trajectory_id for record in records] == [
            f"{records[0].task_id}.{index}" for index in range(6)
        ]
        assert {record.group_size for record in records} == {6}
        assert len({float(record.reward or 0.0) for record in records}) == 2, "what is left has an advantage"
        for record in records:
            validate_trajectory(record, run_id=text.run)
    arrived = {record.trajectory_id for records in trained.values() for record in records}
    assert arrived.isdisjoint(store.dropped)
    assert arrived | set(store.dropped) == {f"{name}.{index}" for name in names for index in range(6)}
    assert {reason for reason, _ in store.dropped.values()} == {"settled"}
    value = context.stats.value
    num_stopped = len(store.dropped) // 6
    assert value(statistics.EARLY_STOPPED_GROUPS) == num_stopped
    in_bin = statistics.EARLY_STOPPED_IN_BIN.member("all")
    assert value(statistics.EARLY_STOPPED) == value(in_bin) == 6 * num_stopped
    assert value(statistics.UNSAMPLED) == 4 * num_stopped


async def test_without_an_environment_worker_no_group_is_stopped_early_and_none_is_lost(
    bus: Bus, topology: Topology, text: Settings, store: FakeStore
) -> None:
    text = msgspec.structs.replace(text, long_tail=LongTailConfig(early_stop_after=2))
    await announce_policy(bus, topology, 0, char_lm_params(0))
    await give(bus, topology, [group("task-1", num_samples=5)])
    spec = topology.rollout_consumer("arithmetic", ack_wait_s=30.0, max_running=64)
    async with running(main.build, CONFIG, make_context("actor", text, bus=bus)) as context:
        [message] = await read(bus, spec, 1)
    records = decode_frame(message.data)
    assert len(records) == records[0].group_size == 5
    assert context.stats.value(statistics.EARLY_STOP_CHECKS_FAILED) == 1
    assert not store.dropped


async def test_cap_follows_observed_lengths_and_is_recorded(
    bus: Bus, topology: Topology, text: Settings
) -> None:
    """A policy that ends at once most of the time: its bin is capped below what the run file allows."""
    text = msgspec.structs.replace(text, long_tail=LongTailConfig(cap_quantile=0.5))
    names = [f"task-{number}" for number in range(6)]
    await announce_policy(bus, topology, 0, char_lm_params(0))
    await give(bus, topology, [group(name, num_samples=64) for name in names])
    spec = topology.rollout_consumer("arithmetic", ack_wait_s=30.0, max_running=64)
    async with running(main.build, CONFIG, make_context("actor", text, bus=bus)):
        messages = await read(bus, spec, len(names))
    caps: list[int] = []
    for message in messages:
        records = decode_frame(message.data)
        [cap] = {record.sampler.max_new_tokens for record in records}
        assert max(record.length_tokens for record in records) <= cap
        caps.append(cap)
    assert caps[0] == text.workload.sampler.max_new_tokens
    assert all(1 <= cap <= caps[0] for cap in caps)
