"""Admission as its process runs it, on a real broker."""

import asyncio
import dataclasses
import json
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.consumers import open_consumer
from tests.support.disks import FULL
from tests.support.service_harness import channel_of_test, make_context, running, until
from tests.support.settings import make_settings
from tidegate.admission.config import AdmissionConfig
from tidegate.admission.main import build
from tidegate.admission.slo_file import read_slos
from tidegate.catalogue import admission as statistics
from tidegate.core.admission import RUN_ENDS, Flow, Limits
from tidegate.core.errors import UnavailableError
from tidegate.core.scaling import ScalingConfig
from tidegate.core.slo_catalogue import SloConfig, SlosConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import StalenessConfig
from tidegate.runtime.live_settings import LiveSections
from tidegate.runtime.run_event_log import read_events
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_reports import publish_stats
from tidegate.wire.clients.admission import AdmissionClient
from tidegate.wire.stats import ServiceStats
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

CONFIG = AdmissionConfig(tick_s=0.05, window_s=2.0, limits_refresh_s=0.2)
RUN_FILE = Limits(max_lag=1, batch_size=2, max_running=8)


@pytest.fixture
def make(tmp_path: Path, nats: Broker, bus: Bus) -> Callable[[], ServiceContext]:
    """A new admission process in the same run folder."""
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=1)
    return lambda: make_context("admission", settings, bus=bus)


@pytest.fixture
async def heard(bus: Bus, topology: Topology) -> list[Limits]:
    """Everything that was published for the task queue."""
    limits: list[Limits] = []

    async def receive(data: bytes, _headers: dict[str, str]) -> None:
        limits.append(msgspec.json.decode(data, type=Limits))

    await bus.subscribe(topology.control("task_queue"), receive)
    return limits


def client(context: ServiceContext) -> AdmissionClient:
    return AdmissionClient(channel_of_test(context, "admission"))


async def published(context: ServiceContext) -> Limits:
    """The newest limits in CONTROL."""
    topology = context.topology
    stored = await context.bus.last(topology.stream("CONTROL"), topology.control("task_queue"))
    assert stored is not None
    return msgspec.json.decode(stored.data, type=Limits)


async def send(context: ServiceContext, *reports: ServiceStats) -> None:
    for report in reports:
        await publish_stats(context.bus, context.topology, report)


class BusyActor:
    """The reports of a run whose actor is its bottleneck, ten times a second until the end."""

    def __init__(self) -> None:
        self.num_sent = 0

    @asynccontextmanager
    async def reporting(self, context: ServiceContext) -> AsyncGenerator[None]:
        task = asyncio.create_task(self._report(context))
        try:
            yield
        finally:
            task.cancel()

    async def _report(self, context: ServiceContext) -> None:
        while True:
            await send(context, *self._reports(self.num_sent))
            self.num_sent += 1
            await asyncio.sleep(0.1)

    def _reports(self, number: int) -> list[ServiceStats]:
        """Ten seconds of work and of waiting in each second: the shares stay whole when reports are late."""
        at_s = 0.1 * number
        busy = {"steps_total": 100.0 * number, "busy_s_total": 1.0 * number, "wait_task_s_total": 0.0}
        flow = {"running_trajectories": 3.0, "in_flight_trajectories": 4.0}
        # The actor's last: once it is known, the others are.
        return [
            ServiceStats("task_queue", "task_queue", "ready", at_s, 0.0, flow),
            ServiceStats("trajectory_store", "trajectory_store", "ready", at_s, 0.0, {}),
            ServiceStats("learner", "learner", "ready", at_s, 0.0, {"wait_batch_s_total": 1.0 * number}),
            ServiceStats("actor", "actor-0", "ready", at_s, 0.0, busy),
        ]


async def test_limits_are_published_at_the_start_and_again_while_nothing_changes(
    make: Callable[[], ServiceContext], heard: list[Limits]
) -> None:
    async with running(build, CONFIG, make()) as context:
        await until(lambda: len(heard) >= 3)
        assert set(heard) == {RUN_FILE}
        assert await client(context).limits() == (RUN_FILE, Flow(running=0, in_flight=0))
        assert await published(context) == RUN_FILE


async def test_pause_is_published_at_once_and_survives_restarts_until_it_is_resumed(
    make: Callable[[], ServiceContext], heard: list[Limits]
) -> None:
    async with running(build, CONFIG, make()) as served:
        await until(lambda: len(heard) >= 1)
        await client(served).set_paused(paused=True, reason="maintenance", by="ana")
        assert (await published(served)).paused
    async with running(build, CONFIG, make()) as served:
        limits, _ = await client(served).limits()
        assert limits.paused
        assert limits.reason.startswith("paused since ")
        assert limits.reason.endswith(" UTC by ana: maintenance")
        num_before = len(heard)
        await until(lambda: len(heard) > num_before)
        assert set(heard[num_before:]) == {limits}, "from the first tick on"
        found = await client(served).diagnose()
        assert (found.bottleneck, found.fix) == ("idle", "run `tidegate resume`")
        await client(served).set_paused(paused=False, reason="")
        assert await published(served) == RUN_FILE
    async with running(build, CONFIG, make()) as served:
        assert not (await client(served).limits())[0].paused


async def test_limits_that_were_decided_before_a_pause_do_not_arrive_behind_it(
    make: Callable[[], ServiceContext], heard: list[Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, is_held, go = Bus.publish, asyncio.Event(), asyncio.Event()

    async def hold_first(self: Bus, to: str, data: bytes, **options: Any) -> Any:
        if to.endswith("ctl.task_queue") and not is_held.is_set():
            is_held.set()
            await go.wait()
        return await publish(self, to, data, **options)

    monkeypatch.setattr(Bus, "publish", hold_first)
    async with running(build, CONFIG, make()) as served:
        await is_held.wait()
        pausing = asyncio.create_task(client(served).set_paused(paused=True, reason="maintenance"))
        await until(lambda: (served.data_dir / "pause.json").exists())
        await asyncio.sleep(0.2)  # would be enough for its limits to be published
        go.set()
        await pausing
        assert (await published(served)).paused
        await until(lambda: len(heard) >= 4)
    assert [limits.paused for limits in heard] == sorted(limits.paused for limits in heard)


async def test_pause_and_budgets_survive_the_loss_of_the_folder_with_its_node(
    make: Callable[[], ServiceContext], heard: list[Limits]
) -> None:
    async with running(build, CONFIG, make()) as served:
        await client(served).set_paused(paused=True, reason="maintenance", by="ana")
    folder = served.data_dir
    before = read_slos(folder / "slos.json")
    shutil.rmtree(folder)
    num_before = len(heard)
    async with running(build, CONFIG, make()) as served:
        await until(lambda: len(heard) > num_before)
        assert all(limits.paused for limits in heard[num_before:]), "from the first tick on"
        limits, _ = await client(served).limits()
        assert limits.reason.endswith(" UTC by ana: maintenance")
        assert before is not None
        assert read_slos(folder / "slos.json") == before
        await client(served).set_paused(paused=False, reason="")
    shutil.rmtree(folder)
    async with running(build, CONFIG, make()) as served:
        assert not (await client(served).limits())[0].paused, "what was cleared does not come back"


async def test_files_of_the_folder_are_right_and_the_copies_follow_them(
    make: Callable[[], ServiceContext],
) -> None:
    async with running(build, CONFIG, make()) as served:
        await client(served).set_paused(paused=True, reason="maintenance")
    topology = served.topology
    subject = topology.control("admission_pause")
    # Cleared while no admission ran, or by one that the broker did not answer.
    (served.data_dir / "pause.json").unlink()
    async with running(build, CONFIG, make()) as served:
        assert not (await client(served).limits())[0].paused

        async def copied() -> bytes | None:
            stored = await served.bus.last(topology.stream("CONTROL"), subject)
            return None if stored is None else stored.data

        async with asyncio.timeout(60.0):
            while await copied() != b"":
                await asyncio.sleep(0.05)


async def test_state_that_the_broker_does_not_take_is_counted_and_published_later(
    make: Callable[[], ServiceContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(build, CONFIG, make()) as served:
        publish, subject = Bus.publish, served.topology.control("admission_pause")
        refused = True

        async def refuse(self: Bus, to: str, data: bytes, **options: Any) -> Any:
            if refused and to == subject:
                raise UnavailableError("no acknowledgement came in time")
            return await publish(self, to, data, **options)

        monkeypatch.setattr(Bus, "publish", refuse)
        await client(served).set_paused(paused=True, reason="maintenance")
        assert (await published(served)).paused, "the pause is in force all the same"
        await until(lambda: served.stats.value(statistics.STATE_NOT_PUBLISHED) >= 1)
        assert await served.bus.last(served.topology.stream("CONTROL"), subject) is None
        refused = False
        async with asyncio.timeout(60.0):
            while await served.bus.last(served.topology.stream("CONTROL"), subject) is None:
                await asyncio.sleep(0.05)


async def test_events_of_a_run_in_a_cluster_are_kept_with_the_evaluation_that_was_missed(
    make: Callable[[], ServiceContext], bus: Bus
) -> None:
    def in_cluster() -> ServiceContext:
        context = make()
        return dataclasses.replace(
            context, settings=msgspec.structs.replace(context.settings, listen="0.0.0.0:7000")
        )

    def kept(context: ServiceContext) -> list[object]:
        # The page's copy of the folder, and that of a backup.
        return [event["version"] for event in read_events(context.data_dir.parent, "evaluation")]

    async with running(build, CONFIG, make()) as served:
        await bus.event("evaluation", {"version": "0-a@0"})
        await until(lambda: served.stats.value(statistics.DECISIONS) >= 2)
        assert kept(served) == [], "on one machine `tidegate up` writes them"
    async with running(build, CONFIG, in_cluster()) as served:
        await until(lambda: kept(served) == ["0-a@0"])
        await bus.event("evaluation", {"version": "0-a@1", "mean_return": 10.0})
        await until(lambda: kept(served) == ["0-a@0", "0-a@1"])
    await bus.event("evaluation", {"version": "0-a@2", "mean_return": 20.0})
    for _ in range(2):
        async with running(build, CONFIG, in_cluster()) as served:
            await until(lambda: kept(served) == ["0-a@0", "0-a@1", "0-a@2"])


async def test_the_pause_at_the_end_of_a_run_ends_with_it(make: Callable[[], ServiceContext]) -> None:
    async with running(build, CONFIG, make()) as served:
        await client(served).set_paused(paused=True, reason="maintenance")
        await client(served).set_paused(paused=True, reason=RUN_ENDS)
        assert (await client(served).limits())[0] == msgspec.structs.replace(
            RUN_FILE, paused=True, reason=RUN_ENDS
        )
    async with running(build, CONFIG, make()) as served:
        assert not (await client(served).limits())[0].paused


async def test_a_pause_is_an_event_a_metric_and_a_text_of_the_live_view(
    make: Callable[[], ServiceContext], bus: Bus, topology: Topology
) -> None:
    events: list[dict[str, object]] = []

    async def receive(data: bytes, _headers: dict[str, str]) -> None:
        events.append(msgspec.json.decode(data, type=dict[str, object]))

    await bus.subscribe(topology.event("pause"), receive)
    async with running(build, CONFIG, make()) as served:
        await client(served).set_paused(paused=True, reason="maintenance", by="ana")
        await until(lambda: served.stats.value(statistics.PAUSED) == 1.0)
        labels = served.stats.snapshot(at_s=0.0).labels
        assert labels[statistics.PAUSE].endswith("by ana: maintenance")
        await client(served).set_paused(paused=False, reason="", by="bo")
        await until(lambda: served.stats.value(statistics.PAUSED) == 0.0)
        assert served.stats.snapshot(at_s=0.0).labels[statistics.PAUSE] == ""
        await until(lambda: len(events) == 2)
    assert [(event["paused"], event["by"]) for event in events] == [(True, "ana"), (False, "bo")]


@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
async def test_full_disk_costs_samples_and_neither_limits_nor_a_pause(
    make: Callable[[], ServiceContext],
) -> None:
    context = make()
    context.data_dir.mkdir(parents=True, exist_ok=True)
    for name in ("stats.jsonl", "slo_events.jsonl", "pause.json.new", "slos.json.new"):
        (context.data_dir / name).symlink_to(FULL)
    async with running(build, CONFIG, context) as served:
        await until(lambda: served.stats.value(statistics.SAMPLES_LOST) >= 3)
        await client(served).set_paused(paused=True, reason="maintenance")
        assert (await published(served)).paused


async def test_rollouts_in_flight_are_bounded_once_an_actor_has_come(
    make: Callable[[], ServiceContext], bus: Bus, topology: Topology
) -> None:
    async with running(build, CONFIG, make()):
        consumer = await open_consumer(bus, topology.task_consumer("default", ack_wait_s=30.0, max_running=1))
        for number in range(12):
            await bus.publish(topology.tasks("default"), b"task", message_id=f"t{number}")

        async def held() -> int:
            return len(await consumer.fetch(20, wait_s=0.2))

        total = 0
        async with asyncio.timeout(60.0):
            while total < 9:
                total += await held()
        assert total == 9, "max_running 8, and one place for an evaluation"
        assert await held() == 0
        await consumer.close()


async def test_service_reports_become_a_diagnosis_labels_and_samples(
    make: Callable[[], ServiceContext],
) -> None:
    actor = BusyActor()
    async with running(build, CONFIG, make()) as context, actor.reporting(context):
        await until(
            lambda: "actor.replicas=2" in context.stats.snapshot(at_s=0.0).labels.get("bottleneck_fix", "")
        )
        assert context.stats.snapshot(at_s=0.0).labels["bottleneck"] == "actor"
        diagnosis = await client(context).diagnose()
        assert diagnosis.bottleneck == "actor"
        assert "actor.replicas=2" in diagnosis.fix
        assert diagnosis.signals["actor_steps_per_s"] > 0
        assert await client(context).limits() == (RUN_FILE, Flow(running=3, in_flight=4))
        assert context.stats.value(statistics.CAPACITY) == 0.0
        await context.bus.publish_core(context.topology.stats("actor"), b"no statistics")
        await until(lambda: context.stats.value(statistics.STATS_REFUSED) == 1)
    samples = [json.loads(line) for line in (context.data_dir / "stats.jsonl").read_text().splitlines()]
    assert samples[-1]["bottleneck"] == "actor"
    assert samples[-1]["values"]["actor.steps_total"] in [
        100.0 * number for number in range(1, actor.num_sent)
    ]
    assert samples[-1]["values"]["task_queue.in_flight_trajectories"] == 4.0
    assert samples[-1]["values"]["stream.tasks"] == 0.0
    assert samples[-1]["learner_idle_ratio"] > 0.5
    assert samples[0]["at_s"] < samples[-1]["at_s"]


async def test_store_under_pressure_gets_fewer_rollouts(
    make: Callable[[], ServiceContext], heard: list[Limits]
) -> None:
    config = msgspec.structs.replace(CONFIG, resident_bytes_high=1 << 20)
    async with running(build, config, make()) as context:
        report = ServiceStats(
            "trajectory_store", "trajectory_store", "ready", 0.0, 0.0, {"resident_bytes": float(2 << 20)}
        )
        async with asyncio.timeout(60.0):
            while not heard or heard[-1].max_running != 4:
                await send(context, report)
                await asyncio.sleep(0.05)
        assert "resident_bytes_high" in heard[-1].reason


@pytest.mark.own_broker
async def test_limits_return_after_the_broker_died(
    make: Callable[[], ServiceContext], heard: list[Limits], nats: Broker
) -> None:
    async with running(build, CONFIG, make()) as context:
        await until(lambda: bool(heard))
        await nats.restart()
        num_before = len(heard)
        await until(lambda: len(heard) > num_before)
        assert context.stats.value(statistics.DECISIONS) > 0


async def test_a_changed_run_file_is_published_at_once_and_declares_its_objectives(
    make: Callable[[], ServiceContext], heard: list[Limits]
) -> None:
    context = make()
    async with running(build, CONFIG, context):
        await until(lambda: RUN_FILE in heard)
        slos = SlosConfig(waste_ratio=SloConfig(bound=0.5))
        context.live.take(LiveSections(StalenessConfig(max_lag=5), slos, ScalingConfig(max_replicas=3)))
        await until(lambda: heard[-1].max_lag == 5)
        bounds = {verdict.slo.name: verdict.slo.bound for verdict in await client(context).slos()}
        assert (bounds["lag_max"], bounds["waste_ratio"]) == (5, 0.5)
        context.live.take(LiveSections(StalenessConfig(max_lag=0), slos, ScalingConfig()))
        await until(lambda: heard[-1].max_lag == 0)


async def test_a_wider_budget_is_published_once_the_services_that_judge_have_taken_it_over(
    make: Callable[[], ServiceContext], heard: list[Limits]
) -> None:
    """More than the tightest of them admits would be generated to be dropped: 1,829 of 6,865 on a real cluster."""
    context = make()

    def judging(service: str, max_lag: int) -> ServiceStats:
        return ServiceStats(service, service, "ready", 0.0, 0.0, {"budget_max_lag": float(max_lag)})

    async with running(build, CONFIG, context):
        async with asyncio.timeout(60.0):
            while not (await client(context).diagnose()).signals["num_learners"]:
                await send(context, judging("trajectory_store", 1), judging("learner", 1))
        context.live.take(LiveSections(StalenessConfig(max_lag=5), SlosConfig(), ScalingConfig()))
        await send(context, judging("learner", 5), judging("trajectory_store", 1))
        await until(lambda: len(heard) > 4)
        assert {limits.max_lag for limits in heard} == {1}
        await send(context, judging("learner", 5), judging("trajectory_store", 5))
        await until(lambda: heard[-1].max_lag == 5)
