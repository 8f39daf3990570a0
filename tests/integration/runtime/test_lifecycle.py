"""The lifecycle, observed from outside on a separate process."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.call_credentials import permitted_channel
from tests.support.loop_stalls import stalls_in_logs
from tests.support.settings import make_settings
from tests.support.toy_service import COMPUTING_S, GO_FILE, TURNS
from tidegate.catalogue.process import (
    BROKER_REFUSED_BECAUSE,
    CALLS_INVALID,
    LOOP_STALL,
    LOOP_STALL_CPU_S,
    MESSAGES_FAILED,
)
from tidegate.core.errors import UnavailableError
from tidegate.runtime import exit_codes
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.rpc import HEALTH_READINESS, ask_health
from tidegate.wire.clients.lifecycle import LifecycleClient
from tidegate.wire.lifecycle import LIFECYCLE_NAME
from tidegate.wire.stats import ServiceStats, decode_stats
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

# Of a busy machine, which may take a minute to start a process.
PATIENCE_S = 120.0


class Toy:
    """Starts toy services and ends them with the test."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, mode: str) -> subprocess.Popen[str]:
        argument = msgspec.json.encode(self.settings).decode()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.toy_service", mode, argument],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    async def ready(self, state: str = "ready") -> LifecycleClient:
        client = LifecycleClient(
            permitted_channel(self.settings.addresses["admission"][0]), service="admission"
        )
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if (await client.stats(now_s=0.0)).state == state:
                        return client
                except UnavailableError:
                    await asyncio.sleep(0.05)


@pytest.fixture
def toy(tmp_path: Path, nats: Broker, bus: Bus) -> Iterator[Toy]:
    assert bus.connected, "it created the streams"
    toy = Toy(make_settings(tmp_path, broker_url=nats.url, drain_timeout_s=1.0))
    yield toy
    for process in toy.processes:
        process.kill()
        process.wait(timeout=60)


async def exit_code(process: subprocess.Popen[str]) -> int:
    return await asyncio.to_thread(process.wait, PATIENCE_S)


async def test_sigterm_drains_and_exits_zero(toy: Toy) -> None:
    process = toy.start("behave")
    await toy.ready()
    process.send_signal(signal.SIGTERM)
    assert await exit_code(process) == 0


async def test_instance_that_stands_by_is_healthy_and_works_when_it_is_its_turn(
    toy: Toy, bus: Bus, topology: Topology, tmp_path: Path
) -> None:
    heard: list[ServiceStats] = []

    async def hear(data: bytes, _headers: dict[str, str]) -> None:
        heard.append(decode_stats(data))

    await bus.subscribe(topology.stats("admission"), hear)
    process = toy.start("standby")
    client = await toy.ready("standby")
    async with permitted_channel(toy.settings.addresses["admission"][0]) as channel:
        assert not await ask_health(channel, HEALTH_READINESS, timeout_s=10.0)
    await asyncio.sleep(5 * toy.settings.telemetry.stats_period_s)
    assert not heard, "it does not work, so it reports nothing"
    assert (await client.stats(now_s=0.0)).values.get(TURNS) is None
    (Path(toy.settings.data_dir) / "admission" / GO_FILE).touch()
    client = await toy.ready()
    async with asyncio.timeout(PATIENCE_S):
        while not heard:
            await asyncio.sleep(0.05)
    assert (await client.stats(now_s=0.0)).values[TURNS] == 1
    process.send_signal(signal.SIGTERM)
    assert await exit_code(process) == 0


async def test_instance_that_stands_by_drains_and_exits_zero(toy: Toy) -> None:
    process = toy.start("standby")
    await toy.ready("standby")
    process.send_signal(signal.SIGTERM)
    assert await exit_code(process) == 0


async def test_the_end_of_a_complete_run_has_a_code_of_its_own(toy: Toy) -> None:
    assert await exit_code(toy.start("complete")) == exit_codes.COMPLETED


async def test_invalid_call_is_counted_by_its_method(toy: Toy) -> None:
    toy.start("behave")
    client = await toy.ready()
    method = f"{LIFECYCLE_NAME}/Drain"
    async with permitted_channel(toy.settings.addresses["admission"][0]) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await cast("Any", channel).unary_unary(f"/{method}")(b"\xff\xff")
    # It is counted when its answer has been sent.
    async with asyncio.timeout(PATIENCE_S):
        while not (num := (await client.stats(now_s=0.0)).values.get(CALLS_INVALID.member(method))):
            await asyncio.sleep(0.05)
    assert num == 1


async def test_event_loop_that_computes_is_measured_reported_and_fails_the_test_of_a_run(
    toy: Toy, tmp_path: Path
) -> None:
    process = toy.start("computing")
    client = await toy.ready()
    async with asyncio.timeout(PATIENCE_S):
        while not (stats := await client.stats(now_s=0.0)).values.get(LOOP_STALL_CPU_S):
            await asyncio.sleep(0.05)
    assert stats.values[LOOP_STALL_CPU_S] == pytest.approx(COMPUTING_S, rel=0.3)
    assert stats.labels[LOOP_STALL].startswith("__main__.compute:")
    await client.drain(reason="test")
    assert await exit_code(process) == 0
    assert process.stdout is not None
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "admission.log").write_text(process.stdout.read())
    (stall,) = stalls_in_logs(tmp_path)
    assert stall.startswith("admission: ")
    assert "where=__main__.compute:" in stall


async def test_messages_at_which_a_handler_raises_and_refusals_of_the_broker_are_reported(
    toy: Toy, bus: Bus, topology: Topology
) -> None:
    toy.start("defect")
    client = await toy.ready()
    values: dict[str, float] = {}
    failed = MESSAGES_FAILED.member("CONTROL")
    async with asyncio.timeout(PATIENCE_S):
        while not values.get(failed):
            await bus.publish_core(topology.control("toy"), b"")
            await asyncio.sleep(0.05)
            values = (await client.stats(now_s=0.0)).values
    # From 0, so that an alert sees the first one.
    assert {values[BROKER_REFUSED_BECAUSE.member(each)] for each in ("publish", "subscribe", "connect")} == {
        0
    }
    assert (await client.stats(now_s=0.0)).state == "ready"


async def test_drain_call_does_what_sigterm_does(toy: Toy) -> None:
    process = toy.start("behave")
    await (await toy.ready()).drain(reason="test")
    assert await exit_code(process) == 0


@pytest.mark.parametrize(
    ("mode", "event"), [("crash", "loop_failed"), ("bug", "loop_crashed"), ("end", "loop_ended")]
)
async def test_a_loop_that_fails_or_ends_stops_the_service_with_one(toy: Toy, mode: str, event: str) -> None:
    process = toy.start(mode)
    assert await exit_code(process) == 1
    assert process.stdout is not None
    assert event in process.stdout.read()


async def test_service_whose_parts_refuse_their_settings_exits_with_two(toy: Toy) -> None:
    process = toy.start("refuse")
    assert await exit_code(process) == 2
    assert process.stdout is not None
    assert "There is no environment 'Nope-v0'. name another one." in process.stdout.read()


async def test_service_that_would_notice_no_lost_broker_exits_with_one(toy: Toy) -> None:
    process = toy.start("silent")
    assert await exit_code(process) == 1
    assert process.stdout is not None
    assert "This process can no longer ping the broker" in process.stdout.read()


async def test_service_that_failed_ends_although_a_thread_of_it_does_not(toy: Toy) -> None:
    process = toy.start("held")
    assert await exit_code(process) == -signal.SIGALRM
    assert process.stdout is not None
    assert "service_stopped" in process.stdout.read()


async def test_a_loop_that_ignores_draining_is_cancelled_at_the_timeout(toy: Toy) -> None:
    process = toy.start("stubborn")
    await toy.ready()
    process.send_signal(signal.SIGTERM)
    assert await exit_code(process) == 0
    assert process.stdout is not None
    assert "loop_cancelled" in process.stdout.read()


async def test_statistics_arrive_as_whole_snapshots(toy: Toy, bus: Bus, topology: Topology) -> None:
    seen: list[ServiceStats] = []

    async def handler(data: bytes, headers: dict[str, str]) -> None:
        seen.append(decode_stats(data))

    await bus.subscribe(topology.stats("*"), handler)
    toy.start("behave")
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) < 3:
            await asyncio.sleep(0.05)
    assert seen[-1].service == "admission"
    assert seen[-1].state == "ready"
    assert seen[-1].values["turns_total"] == 1
    assert seen[-1].values["cpu_s_total"] > 0
    assert seen[-1].values["rss_mb"] > 1


@pytest.mark.own_broker
async def test_a_service_waits_for_a_broker_that_starts_later(toy: Toy, nats: Broker) -> None:
    nats.kill()
    process = toy.start("behave")
    await asyncio.sleep(1.0)
    assert process.poll() is None
    await nats.restart()
    await toy.ready()


async def test_a_second_instance_on_the_same_port_is_refused_with_the_address(toy: Toy) -> None:
    toy.start("behave")
    await toy.ready()
    second = toy.start("behave")
    assert await exit_code(second) == 1
    assert second.stdout is not None
    assert toy.settings.addresses["admission"][0] in second.stdout.read()
