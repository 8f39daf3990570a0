"""Objectives as admission watches them: from statistics to budgets, events, the file and the call."""

import asyncio
import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.service_harness import channel_of_test, make_context, running, until
from tests.support.settings import make_settings
from tidegate.admission.config import AdmissionConfig
from tidegate.admission.main import build
from tidegate.admission.slo_file import read_slos, verdicts_of
from tidegate.catalogue import admission as statistics
from tidegate.core.slo import Verdict
from tidegate.core.slo_catalogue import SloConfig, SlosConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_reports import publish_stats
from tidegate.wire.clients.admission import AdmissionClient
from tidegate.wire.stats import ServiceStats
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

CONFIG = AdmissionConfig(tick_s=0.05, window_s=2.0, limits_refresh_s=0.2)
# Breached once observations span a twentieth of the window, and until the window has passed.
SLOS = SlosConfig(lag_p95=SloConfig(bound=0.0, window_s=30.0))


@pytest.fixture
def make(tmp_path: Path, nats: Broker, bus: Bus) -> Callable[[], ServiceContext]:
    """A new admission process in the same run folder."""
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=1)
    settings = msgspec.structs.replace(settings, slos=SLOS)
    return lambda: make_context("admission", settings, bus=bus)


async def send(context: ServiceContext, stats: ServiceStats) -> None:
    await publish_stats(context.bus, context.topology, stats)


async def listens(context: ServiceContext) -> None:
    """Wait until admission receives messages, and has received those before: it counts an invalid one."""
    num_refused = context.stats.value(statistics.STATS_REFUSED)
    async with asyncio.timeout(60.0):
        while context.stats.value(statistics.STATS_REFUSED) == num_refused:
            await context.bus.publish_core(context.topology.stats("actor"), b"no statistics")
            await asyncio.sleep(0.02)


async def by_name(context: ServiceContext) -> dict[str, Verdict]:
    client = AdmissionClient(channel_of_test(context, "admission"))
    return {each.slo.name: each for each in await client.slos()}


async def learn_badly(context: ServiceContext) -> None:
    """Each update trains ten trajectories that are behind the objective, until it is breached."""
    async with asyncio.timeout(60.0):
        for number in count():
            values = {
                "version_step": float(number),
                "busy_s_total": 0.1 * number,
                "wait_batch_s_total": 0.0,
                "slo_good.lag_p95_total": 0.0,
                "slo_bad.lag_p95_total": 10.0 * number,
                "lag_p95": 1.0,
                "ess": 0.8,
            }
            await send(context, ServiceStats("learner", "learner", "ready", 0.0, 0.0, values))
            await asyncio.sleep(0.06)
            if context.stats.value(statistics.SLOS_IN.member("breached")) == 1:
                return


async def until_judged(context: ServiceContext) -> None:
    """Wait until a tick has judged all that was sent."""
    await listens(context)
    num_ticks = context.stats.value(statistics.DECISIONS)
    await until(lambda: context.stats.value(statistics.DECISIONS) >= num_ticks + 2)


async def test_objectives_without_observations_have_no_data(
    make: Callable[[], ServiceContext],
) -> None:
    async with running(build, CONFIG, make()) as context:
        found = await by_name(context)
        assert "actor_idle_ratio" not in found
        assert {each.condition for each in found.values()} == {"no_data"}
        await until(lambda: context.stats.value(statistics.SLOS_IN.member("no_data")) == len(found))
        assert context.stats.snapshot(at_s=0.0).labels["slos"] == f"{len(found)} no data"


async def test_breach_is_published_with_its_cause_and_survives_a_restart(
    make: Callable[[], ServiceContext], bus: Bus, topology: Topology
) -> None:
    heard: list[dict[str, object]] = []

    async def receive(data: bytes, _headers: dict[str, str]) -> None:
        heard.append(json.loads(data))

    await bus.subscribe(topology.event("slo"), receive)
    async with running(build, CONFIG, make()) as context:
        await learn_badly(context)
        await until_judged(context)
        found = await by_name(context)
        assert found["lag_p95"].condition == "breached"
        assert found["lag_p95"].value == 1.0
        assert found["lag_p95"].last_breach is not None
        assert found["lag_p95"].last_breach.cause.startswith("actor: No actor reports")
        assert found["effective_sample_size"].condition == "ok"
        assert found["effective_sample_size"].value == 0.8
        assert "(lag_p95)" in context.stats.snapshot(at_s=0.0).labels["slos"]
        await until(lambda: bool(heard))
        assert (heard[0]["kind"], heard[0]["slo"], heard[0]["event"]) == ("slo", "lag_p95", "breach")
    events = [json.loads(line) for line in (context.data_dir / "slo_events.jsonl").read_text().splitlines()]
    assert [event["slo"] for event in events][:1] == ["lag_p95"]
    assert events[0]["cause"] == found["lag_p95"].last_breach.cause
    record = read_slos(context.data_dir / "slos.json")
    assert record is not None
    stopped = {each.slo.name: each for each in verdicts_of(record)}
    assert stopped["lag_p95"].bad == found["lag_p95"].bad
    async with running(build, CONFIG, make()) as context:
        again = (await by_name(context))["lag_p95"]
        assert again.bad == found["lag_p95"].bad
        assert again.last_breach == found["lag_p95"].last_breach


async def test_propagation_is_measured_from_publication_to_the_actors_reports(
    make: Callable[[], ServiceContext],
) -> None:
    async def publish(context: ServiceContext, step: int, *, since_s: float) -> None:
        labels = {"published_version": f"0-a@{step}"}
        values = {"published_at_s": 1000.0 - since_s}
        await send(context, ServiceStats("learner", "learner", "ready", 1000.0, 0.0, values, labels))

    async def serve(context: ServiceContext, step: int) -> None:
        labels = {"serving_version": f"0-a@{step}"}
        for number in range(3):
            stats = ServiceStats(
                "actor", f"actor-{number}", "ready", 0.0, 0.0, {"serving_step": float(step)}, labels
            )
            await send(context, stats)

    async with running(build, CONFIG, make()) as context:
        await listens(context)
        started_s = time.monotonic()
        await publish(context, 1, since_s=5.0)
        await serve(context, 1)
        await publish(context, 2, since_s=3.0)
        await serve(context, 2)
        found = (await by_name(context))["version_propagation_s"]
        async with asyncio.timeout(60.0):
            while found.value is None:
                await asyncio.sleep(0.05)
                found = (await by_name(context))["version_propagation_s"]
        assert found.good == 1.0
        # The publication was 3 s old when the learner reported it; the actors' reports followed at once.
        assert 3.0 <= found.value < 5.0 + time.monotonic() - started_s


async def test_version_that_does_not_arrive_is_bad_while_it_is_awaited(
    make: Callable[[], ServiceContext],
) -> None:
    async with running(build, CONFIG, make()) as context:
        await listens(context)
        for step, since_s in ((1, 0.0), (2, 40.0)):
            labels = {"published_version": f"0-a@{step}"}
            values = {"published_at_s": 1000.0 - since_s}
            await send(context, ServiceStats("learner", "learner", "ready", 1000.0, 0.0, values, labels))
        found = (await by_name(context))["version_propagation_s"]
        async with asyncio.timeout(60.0):
            while not found.bad:
                await asyncio.sleep(0.05)
                found = (await by_name(context))["version_propagation_s"]
        assert found.value is not None
        assert found.value >= 40.0
