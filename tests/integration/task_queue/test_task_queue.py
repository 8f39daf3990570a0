"""The task queue as its process runs it, between a real broker and a fake store."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from tests.integration.task_queue.world import FakeStore, Taker, announce_version, version
from tests.support.broker import Broker
from tests.support.service_harness import channel_of_test, make_context, running, until
from tests.support.settings import make_settings
from tidegate.catalogue import task_queue as statistics
from tidegate.core.admission import Limits
from tidegate.core.curriculum import CurriculumState
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.ids import task_id, trajectory_at
from tidegate.core.records import Task
from tidegate.runtime.board_metrics import readings
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings, StalenessConfig, WorkloadConfig
from tidegate.runtime.live_settings import LiveSections
from tidegate.runtime.prompt_sources import DatasetConfig
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_reports import publish_stats
from tidegate.runtime.streams import Stored
from tidegate.task_queue import loops, packing
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.task_queue.journal import open_journal, read_journal
from tidegate.task_queue.main import build
from tidegate.wire.clients.task_queue import TaskQueueClient
from tidegate.wire.convert import task_to_bytes
from tidegate.wire.stats import ServiceStats
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

CONFIG = TaskQueueConfig(sweep_period_s=0.05, limits_refresh_s=0.1, retry_backoff_s=0.05)
IMPATIENT = msgspec.structs.replace(CONFIG, task_deadline_s=0.2)


@dataclass
class Stage:
    """Everything around one queue."""

    settings: Settings
    bus: Bus
    topology: Topology
    store: FakeStore
    taker: Taker

    def context(self) -> ServiceContext:
        return make_context("task_queue", self.settings, bus=self.bus)

    def client(self, context: ServiceContext) -> TaskQueueClient:
        return TaskQueueClient(channel_of_test(context, "task_queue"))

    async def announce(self, step: int) -> None:
        await announce_version(self.bus, self.topology, step)

    async def send_limits(self, limits: Limits) -> None:
        body = msgspec.json.encode(limits)
        await self.bus.publish(self.topology.control("task_queue"), body, message_id=str(hash(body)))

    def add_outcomes(self, tasks: list[Task], state: str, *, trained_at: int | None = None) -> None:
        for task in tasks:
            for sample_index in range(task.num_samples):
                self.store.add_outcome(
                    f"{task.task_id}.{sample_index}",
                    state,
                    trained_at=None if trained_at is None else version(trained_at),
                )

    @property
    def journal_path(self) -> Path:
        return Path(self.settings.data_dir) / "task_queue" / "journal.sqlite"


@pytest.fixture
async def stage(tmp_path: Path, nats: Broker, bus: Bus, topology: Topology) -> AsyncIterator[Stage]:
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=0)
    store = FakeStore()
    async with store.serving(settings.addresses["trajectory_store"][0]):
        yield Stage(settings, bus, topology, store, Taker(bus, topology))


async def test_nothing_is_admitted_before_the_first_version_and_a_batch_after_it(stage: Stage) -> None:
    async with running(build, CONFIG, stage.context()) as context:
        await until(
            lambda: "first version" in context.stats.snapshot(at_s=0).labels.get("admission_state", "")
        )
        assert context.stats.value(statistics.ADMITTED) == 0
        await stage.announce(0)
        tasks = await stage.taker.take(2)
        assert [task.task_id for task in tasks] == [task_id(1), task_id(2)]
        assert {task.required_version for task in tasks} == {version(0)}
        assert {(task.kind, task.num_samples, task.unroll_length, task.env_id) for task in tasks} == {
            ("segment", 1, 8, "CartPole-v1")
        }
        assert len({task.seed for task in tasks}) == 2
        assert len({task.trace_parent for task in tasks}) == 2
        await until(lambda: "staleness budget" in context.stats.snapshot(at_s=0).labels["admission_state"])
        totals = await stage.client(context).journal()
        assert (totals.admitted, totals.open, totals.published_tasks) == (2, 2, 2)


async def test_synchronous_training_admits_the_next_batch_only_under_the_version_it_will_update(
    stage: Stage,
) -> None:
    async with running(build, CONFIG, stage.context()):
        await stage.announce(0)
        for step in range(5):
            tasks = await stage.taker.take(2)
            assert {task.required_version for task in tasks} == {version(step)}
            stage.add_outcomes(tasks, "accepted")
            stage.add_outcomes(tasks, "trained", trained_at=step)
            if step == 0:
                assert await stage.taker.take_whatever_comes(for_s=0.3) == [], "committed, not announced"
            await stage.announce(step + 1)


async def test_unannounced_counts_what_is_trained_until_its_version_is_announced(stage: Stage) -> None:
    async with running(build, CONFIG, stage.context()) as context:
        await stage.announce(0)
        tasks = await stage.taker.take(2)
        await until(lambda: context.stats.value(statistics.RUNNING_TRAJECTORIES) == 2)
        assert context.stats.value(statistics.UNANNOUNCED_TRAJECTORIES) == 0, "admitted, not trained"
        stage.add_outcomes(tasks, "accepted")
        stage.add_outcomes(tasks, "trained", trained_at=0)
        await until(lambda: context.stats.value(statistics.UNANNOUNCED_TRAJECTORIES) == 2)
        assert context.stats.value(statistics.TASKS_PUBLISHED) == 2, "no task waits for the broker"
        shown = {each.metric: each.value for each in readings(context.stats.snapshot(at_s=0.0))}
        assert shown["tidegate.task.unannounced"] == 2
        await stage.announce(1)
        await until(lambda: context.stats.value(statistics.UNANNOUNCED_TRAJECTORIES) == 0)


async def test_announcement_that_overtakes_its_commit_admits_once_the_commit_is_known(stage: Stage) -> None:
    async with running(build, CONFIG, stage.context()):
        await stage.announce(0)
        tasks = await stage.taker.take(2)
        stage.add_outcomes(tasks, "accepted")
        await stage.announce(1)
        assert await stage.taker.take_whatever_comes(for_s=0.2) == []
        stage.add_outcomes(tasks, "trained", trained_at=0)
        assert {task.required_version for task in await stage.taker.take(2)} == {version(1)}


async def test_dropped_work_is_replaced_under_the_same_version(stage: Stage) -> None:
    async with running(build, CONFIG, stage.context()):
        await stage.announce(0)
        tasks = await stage.taker.take(2)
        stage.add_outcomes(tasks[:1], "dropped")
        [replacement] = await stage.taker.take(1)
        assert replacement.task_id == task_id(3)
        assert replacement.required_version == version(0)


async def test_task_journaled_and_not_published_goes_out_once_with_the_id_it_had(stage: Stage) -> None:
    """The process died between the journal and the broker; of the second task only the acknowledgement was lost."""
    context = stage.context()
    journal = open_journal(context.data_dir / "journal.sqlite", run_id=stage.settings.run)
    tasks = [
        Task(task_id(seq), stage.settings.run, "segment", version(0), trace_parent="00-t") for seq in (1, 2)
    ]
    journal.admit(tasks, curriculum=CurriculumState(num_drawn=2))
    journal.close()
    await stage.bus.publish(
        stage.topology.tasks("default"), task_to_bytes(tasks[1]), message_id=f"{task_id(2)}:1"
    )
    async with running(build, CONFIG, context):
        assert sorted(task.task_id for task in await stage.taker.take(2)) == [task_id(1), task_id(2)]
        await stage.announce(0)
        assert await stage.taker.take_whatever_comes(for_s=0.2) == [], "the admitted tasks fill the budget"
    with read_journal(stage.journal_path) as reader:
        assert list(reader.admitted_ids()) == [trajectory_at(1, 0), trajectory_at(2, 0)]
        assert reader.totals().published_tasks == 2


async def test_restarted_queue_resumes_at_its_position(stage: Stage) -> None:
    async with running(build, CONFIG, stage.context()):
        await stage.announce(0)
        first = await stage.taker.take(2)
        stage.add_outcomes(first, "accepted")
        stage.add_outcomes(first, "trained", trained_at=0)
        await until(lambda: len(stage.store.log) == 4)
    await stage.announce(1)
    async with running(build, CONFIG, stage.context()) as context:
        second = await stage.taker.take(2)
        assert [task.task_id for task in second] == [task_id(3), task_id(4)]
        totals = await stage.client(context).journal()
        assert (totals.admitted, totals.open) == (4, 2)
        ids, oldest_at_s = await stage.client(context).open_trajectories(limit=1)
        assert ids == [trajectory_at(3, 0)]
        assert oldest_at_s == pytest.approx(second[0].admitted_at_s)


async def test_queue_packs_old_rows_and_follows_a_restore_that_revives_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "CHUNK_TASKS", 4)
    config = msgspec.structs.replace(CONFIG, rows_kept_max=0)  # fewer than a run file may set
    async with running(build, config, stage.context()) as context:
        tasks: list[Task] = []
        for step in range(5):
            await stage.announce(step)
            batch = await stage.taker.take(2)
            stage.add_outcomes(batch, "accepted")
            stage.add_outcomes(batch, "trained", trained_at=step)
            tasks += batch
        await until(lambda: _num_packed(stage.journal_path) == 2)
        totals, ids = await stage.client(context).read_journal()
        assert (totals.admitted, totals.open, totals.published_tasks) == (10, 0, 10)
        assert ids == {trajectory_at(seq, 0) for seq in range(1, 11)}
        stage.add_outcomes(tasks[5:6], "available")
        await until(lambda: _num_packed(stage.journal_path) == 1)
        open_ids, _ = await stage.client(context).open_trajectories(limit=10)
        assert open_ids == [trajectory_at(6, 0)]
        stage.add_outcomes(tasks[5:6], "trained", trained_at=4)
        await until(lambda: _num_packed(stage.journal_path) == 2)
        assert (await stage.client(context).journal()).open == 0


def _num_packed(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT count(*) FROM packed").fetchone()[0]


async def test_limits_are_followed_and_hold_while_admission_is_away(stage: Stage) -> None:
    settings = msgspec.structs.replace(
        stage.settings, staleness=msgspec.structs.replace(stage.settings.staleness, max_lag=3)
    )
    stage.settings = settings
    await stage.send_limits(Limits(max_lag=3, batch_size=2, max_running=8, paused=True, reason="maintenance"))
    async with running(build, CONFIG, stage.context()) as context:
        await stage.announce(0)
        await until(lambda: context.stats.snapshot(at_s=0).labels.get("admission_state") == "maintenance")
        await stage.bus.publish(stage.topology.control("task_queue"), b"{no limits", message_id="bad")
        await until(lambda: context.stats.value(statistics.LIMITS_REFUSED) > 0)
        assert context.stats.value(statistics.ADMITTED) == 0
        await stage.send_limits(Limits(max_lag=1, batch_size=2, max_running=3))
        assert len(await stage.taker.take(3)) == 3
        assert await stage.taker.take_whatever_comes(for_s=0.2) == [], "max_running 3"
    async with running(build, CONFIG, stage.context()) as context:
        await until(lambda: "concurrency" in context.stats.snapshot(at_s=0).labels.get("admission_state", ""))


async def test_pause_from_before_the_first_start_holds_however_late_it_is_read(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked, answered = stage.bus.last, asyncio.Event(), asyncio.Event()

    async def read_late(stream: str, subject: str) -> Stored | None:
        asked.set()
        await answered.wait()
        return await read(stream, subject)

    monkeypatch.setattr(stage.bus, "last", read_late)
    await stage.send_limits(Limits(max_lag=0, batch_size=2, max_running=8, paused=True, reason="maintenance"))
    async with running(build, CONFIG, stage.context()) as context:
        await asked.wait()
        await stage.announce(0)
        assert await stage.taker.take_whatever_comes(for_s=0.3) == []
        answered.set()
        await until(lambda: context.stats.snapshot(at_s=0).labels.get("admission_state") == "maintenance")
        assert context.stats.value(statistics.ADMITTED) == 0


async def test_limits_that_cannot_be_read_delay_admission_for_a_bounded_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(stream: str, subject: str) -> Stored | None:
        raise UnavailableError("CONTROL has no leader")

    monkeypatch.setattr(stage.bus, "last", refuse)
    monkeypatch.setattr(loops, "FIRST_LIMITS_DEADLINE_S", 0.2)
    async with running(build, CONFIG, stage.context()):
        await stage.announce(0)
        assert len(await stage.taker.take(2)) == 2


async def test_a_lower_budget_holds_at_once_and_a_wider_one_once_admission_publishes_it(stage: Stage) -> None:
    def budget(max_lag: int) -> LiveSections:
        return LiveSections(StalenessConfig(max_lag=max_lag))

    async with running(build, CONFIG, stage.context()) as context:
        await stage.announce(0)
        assert len(await stage.taker.take(2)) == 2
        context.live.take(budget(2))
        await stage.send_limits(Limits(max_lag=2, batch_size=2, max_running=8))
        assert len(await stage.taker.take(4)) == 4, "(2 + 1) batches in all"
        context.live.take(budget(1))
        context.live.take(budget(3))
        await stage.send_limits(Limits(max_lag=1, batch_size=2, max_running=8))
        assert await stage.taker.take_whatever_comes(for_s=0.3) == [], "admission has not widened it yet"
        await stage.send_limits(Limits(max_lag=9, batch_size=2, max_running=8))
        assert len(await stage.taker.take(2)) == 2, "never beyond its own run file, whatever is published"
        assert await stage.taker.take_whatever_comes(for_s=0.3) == []


async def test_retired_run_admits_no_more_and_drops_unarrived_trajectories(stage: Stage) -> None:
    async with running(build, CONFIG, stage.context()) as context:
        await stage.announce(0)
        tasks = await stage.taker.take(2)
        stage.add_outcomes(tasks[:1], "accepted")
        await until(lambda: context.stats.value(statistics.RUNNING_TRAJECTORIES) == 1)
        await stage.client(context).retire(reason="enough")
        assert stage.store.dropped == {trajectory_at(2, 0): "retired: enough"}
        await until(lambda: context.stats.value(statistics.IN_FLIGHT_TRAJECTORIES) == 1)
        await stage.announce(1)
        assert await stage.taker.take_whatever_comes(for_s=0.2) == []
        assert (await stage.client(context).journal()).retired
    with read_journal(stage.journal_path) as reader:
        assert reader.totals().retired
    async with running(build, CONFIG, stage.context()):
        assert [task.task_id for task in await stage.taker.take(1)] == [task_id(3)], (
            "a resumed run admits again"
        )


async def test_task_that_was_overtaken_and_never_arrives_is_dropped_as_failed(stage: Stage) -> None:
    async with running(build, IMPATIENT, stage.context()):
        await stage.announce(0)
        tasks = await stage.taker.take(2)
        stage.add_outcomes(tasks[1:], "accepted")
        await until(lambda: trajectory_at(1, 0) in stage.store.dropped)
        assert stage.store.dropped[trajectory_at(1, 0)].startswith(
            "failed: no trajectory within task_deadline_s"
        )
        assert [task.task_id for task in await stage.taker.take(1)] == [task_id(3)]


async def test_last_task_is_found_lost_once_an_actor_was_idle(stage: Stage) -> None:
    """No later task can overtake it: at max_lag 0 the whole run waits for this one."""
    async with running(build, IMPATIENT, stage.context()):
        await stage.announce(0)
        await stage.taker.take(2)
        waited_s = 0.0
        while not stage.store.dropped:
            waited_s += 0.05
            report = ServiceStats("actor", "actor-0", "ready", 0.0, 1.0, {"wait_task_s_total": waited_s})
            await publish_stats(stage.bus, stage.topology, report)
            await asyncio.sleep(0.05)
        assert set(stage.store.dropped) == {trajectory_at(1, 0), trajectory_at(2, 0)}


async def test_zero_actors_is_a_pause_and_loses_no_task(stage: Stage) -> None:
    config = msgspec.structs.replace(CONFIG, task_deadline_s=0.05)
    async with running(build, config, stage.context()) as context:
        await stage.announce(0)
        await until(lambda: context.stats.value(statistics.TASKS_PUBLISHED) == 2)
        await asyncio.sleep(0.5)
        assert stage.store.dropped == {}
        assert len(await stage.taker.take(2)) == 2


async def test_queue_runs_without_a_store_and_follows_it_when_it_comes(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology
) -> None:
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=0)
    store = FakeStore()
    stage = Stage(settings, bus, topology, store, Taker(bus, topology))
    async with running(build, CONFIG, stage.context()) as context:
        await stage.announce(0)
        tasks = await stage.taker.take(2)
        await until(lambda: context.stats.value(statistics.STORE_FAILURES) > 0)
        stage.add_outcomes(tasks, "accepted")
        stage.add_outcomes(tasks, "trained", trained_at=0)
        async with store.serving(settings.addresses["trajectory_store"][0]):
            await until(lambda: context.stats.value(statistics.IN_FLIGHT_TRAJECTORIES) == 0)


@pytest.mark.own_broker
async def test_broker_that_dies_and_returns_gets_every_task_once(stage: Stage, nats: Broker) -> None:
    async with running(build, CONFIG, stage.context()) as context:
        await stage.announce(0)
        tasks = await stage.taker.take(2)
        await asyncio.to_thread(nats.kill)
        stage.add_outcomes(tasks[:1], "dropped")
        await until(lambda: context.stats.value(statistics.ADMITTED) == 3)
        await nats.restart()
        await until(lambda: context.stats.value(statistics.TASKS_PUBLISHED) == 3)
        seen = await stage.taker.take(1)
        while seen[-1].task_id != task_id(
            3
        ):  # acknowledgements that died with the broker bring their tasks back
            assert seen[-1] in tasks
            seen += await stage.taker.take(1)


async def test_full_task_stream_stops_admission_until_a_task_ends(
    tmp_path: Path, nats: Broker, topology: Topology, bus: Bus
) -> None:
    """TASKS of this test holds 64 messages; the budget would allow many more."""
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=1000)
    settings = msgspec.structs.replace(settings, max_running=200)
    store = FakeStore()
    stage = Stage(settings, bus, topology, store, Taker(bus, topology))
    config = msgspec.structs.replace(CONFIG, publish_deadline_s=0.5)
    async with (
        store.serving(settings.addresses["trajectory_store"][0]),
        running(build, config, stage.context()) as context,
    ):
        await stage.announce(0)
        await until(lambda: context.stats.value(statistics.PUBLISH_FAILURES) > 0)
        seen = [task.task_id for task in await stage.taker.take(200)]
        assert sorted(seen) == [task_id(seq) for seq in range(1, 201)], "none twice, none missing"


def text_settings(stage: Stage, rows: list[str], held_out: list[str]) -> Settings:
    data = Path(stage.settings.data_dir) / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("\n".join(rows))
    (data / "heldout.jsonl").write_text("\n".join(held_out))
    workload = WorkloadConfig(kind="text", env="arithmetic", num_samples=2)
    return msgspec.structs.replace(stage.settings, workload=workload, batch_size=4)


async def test_groups_come_from_the_dataset_in_epochs_and_evaluations_once_a_multiple(stage: Stage) -> None:
    rows = [
        f'{{"prompt_id": "p{number}", "prompt": "{number}+1=", "answer": "{number + 1}"}}'
        for number in range(4)
    ]
    stage.settings = text_settings(stage, rows, rows[:1])
    config = msgspec.structs.replace(CONFIG, evaluation_every_versions=2)
    groups: list[Task] = []
    evaluations: list[Task] = []
    async with running(build, config, stage.context()) as context:
        for step in range(5):
            await stage.announce(step)
            batch: list[Task] = []
            expected = 2 + (step % 2 == 0)
            for task in await stage.taker.take(expected):
                (evaluations if task.kind == "evaluation" else batch).append(task)
            await stage.bus.event("evaluation", {"version": step})
            groups += batch
            stage.add_outcomes(batch, "accepted")
            stage.add_outcomes(batch, "trained", trained_at=step)
        totals = await stage.client(context).journal()
    assert [task.required_version.step for task in evaluations] == [0, 2, 4]
    assert {task.num_samples for task in groups} == {2}
    assert sorted(task.prompt_id for task in groups[:4]) == ["p0", "p1", "p2", "p3"]
    assert sorted(task.prompt_id for task in groups[4:8]) == ["p0", "p1", "p2", "p3"]
    assert (totals.admitted, totals.epoch, totals.position) == (20, 2, 2)


async def test_segments_are_evaluated_once_a_multiple_with_the_seed_of_the_run(stage: Stage) -> None:
    config = msgspec.structs.replace(CONFIG, evaluation_every_versions=2)
    evaluations: list[Task] = []
    async with running(build, config, stage.context()):
        for step in range(3):
            await stage.announce(step)
            tasks = await stage.taker.take(stage.settings.batch_size + (step % 2 == 0))
            evaluations += [task for task in tasks if task.kind == "evaluation"]
            await stage.bus.event("evaluation", {"version": step})
            segments = [task for task in tasks if task.kind == "segment"]
            stage.add_outcomes(segments, "accepted")
            stage.add_outcomes(segments, "trained", trained_at=step)
    assert [task.required_version.step for task in evaluations] == [0, 2]
    assert {(task.env_id, task.seed) for task in evaluations} == {("CartPole-v1", stage.settings.seed)}


async def test_settings_that_cannot_work_are_refused_at_the_start(stage: Stage) -> None:
    stage.settings = text_settings(stage, [], [])
    with pytest.raises(ConfigError, match="empty"):
        await build(stage.context(), CONFIG)
    stage.settings = msgspec.structs.replace(stage.settings, batch_size=3)
    with pytest.raises(ConfigError, match="whole groups"):
        await build(stage.context(), CONFIG)


@pytest.mark.parametrize("file", ["train.jsonl", "heldout.jsonl"])
async def test_rows_of_another_environment_are_refused_at_the_start(stage: Stage, file: str) -> None:
    own = '{"prompt_id": "1", "prompt": "1+1=", "env": "arithmetic"}'
    stage.settings = text_settings(stage, [own], [own])
    path = Path(stage.settings.data_dir) / "data" / file
    path.write_text('{"prompt_id": "1", "prompt": "1+1=", "env": "sums"}\n')
    config = msgspec.structs.replace(CONFIG, evaluation_every_versions=2)
    with pytest.raises(ConfigError, match=rf"{file} of the run has prompts of 'sums'.*names arithmetic"):
        await build(stage.context(), config)


async def test_evaluations_without_held_out_problems_are_refused_at_the_start(stage: Stage) -> None:
    own = Path(stage.settings.data_dir) / "mine.jsonl"
    own.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    workload = WorkloadConfig(
        kind="text", env="arithmetic", num_samples=2, dataset=DatasetConfig(path=str(own))
    )
    stage.settings = msgspec.structs.replace(stage.settings, workload=workload, batch_size=4)
    config = msgspec.structs.replace(CONFIG, evaluation_every_versions=2)
    with pytest.raises(ConfigError, match="holds no problems out"):
        await build(stage.context(), config)
