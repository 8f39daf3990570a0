"""I9: what the absence of a service may cost."""

import asyncio
import random

import msgspec
import pytest

from tests.simulation.reports import check
from tidegate.sim import cluster as cluster_module
from tidegate.sim.cluster import SimulatedCluster
from tidegate.sim.process import Process
from tidegate.sim.rpc import Channel
from tidegate.sim.scenario import TICK_S, draw_scenario
from tidegate.sim.simulation import Report, simulate
from tidegate.wire.clients.admission import AdmissionClient

pytestmark = pytest.mark.simulation

TICKS = 1200
# A fault starts within the first seconds and must end before the half of the run without faults.
ABSENCE_S = 12.0
# What was in flight when the last actor was killed is stored and trained within this.
DRAINING_S = 3.0
WARM_UP_S = 3.0
# More than the five deliveries after which the broker once kept a task to itself.
KILLS = 6
# Until the tasks of killed actors are with other actors: they are back, and the broker waited for an acknowledgement.
REDELIVERED_S = cluster_module.ACK_WAIT_S + 1.0
# A lossy network may cost the task after the last kill another delivery or two.
RESUMED_AFTER = 4


class Observed:
    """What a fault observed; it runs once, however often it is drawn."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.has_begun = False

    async def begins(self) -> bool:
        """Whether this is the first time; if so, returns once training has started."""
        first, self.has_begun = not self.has_begun, True
        if first:
            await asyncio.sleep(WARM_UP_S)
        return first


def run(fault: object, *, max_lag: int) -> Report:
    scenario = msgspec.structs.replace(
        draw_scenario(5, ticks=TICKS, max_lag=max_lag), num_actors=2, policy_delays_s=(0.0, 0.3)
    )
    return check(simulate(scenario, faults={fault: 1}))  # pyright: ignore[reportArgumentType]  # a Fault


@pytest.mark.parametrize("max_lag", [0, 4])
def test_training_goes_on_for_as_long_as_admission_is_away(max_lag: int) -> None:
    seen = Observed()

    async def lose_admission(cluster: SimulatedCluster, _rng: random.Random) -> None:
        if not await seen.begins():
            return
        admission = cluster.hosts["admission"]
        admission.hold(held=True)
        await admission.kill()
        for _ in range(3):
            seen.values.append(cluster.oracle.num_updates)
            await asyncio.sleep(ABSENCE_S / 2)

    report = run(lose_admission, max_lag=max_lag)
    start, middle, end = seen.values
    assert start < middle < end
    assert max(report.trained_by_lag) <= max_lag


def test_last_limits_outlive_admission_and_a_restart_of_the_queue() -> None:
    seen = Observed()

    async def pause_and_lose_admission(cluster: SimulatedCluster, _rng: random.Random) -> None:
        if not await seen.begins():
            return
        operator = AdmissionClient(
            Channel(cluster.world.switchboard, Process("operator"), "admission", role="operator").as_channel()
        )
        await operator.set_paused(paused=True, reason="paused by an operator")
        await asyncio.sleep(DRAINING_S)
        admission, queue = cluster.hosts["admission"], cluster.hosts["task_queue"]
        admission.hold(held=True)
        await admission.kill()
        await queue.kill()
        queue.start()
        tasks = cluster.broker.streams[cluster.world.topology.stream("TASKS")]
        seen.values.append(tasks.last_sequence)
        await asyncio.sleep(ABSENCE_S / 2)
        seen.values.append(tasks.last_sequence)
        admission.hold(held=False)
        while admission.state != "running":
            await asyncio.sleep(0.05)
        await operator.set_paused(paused=False, reason="")

    run(pause_and_lose_admission, max_lag=4)
    before, after = seen.values
    assert before == after


def test_without_any_actor_training_pauses_and_then_goes_on() -> None:
    seen = Observed()

    async def lose_all_actors(cluster: SimulatedCluster, _rng: random.Random) -> None:
        if not await seen.begins():
            return
        for actor in cluster.actors:
            actor.hold(held=True)
            await actor.kill()
        await asyncio.sleep(DRAINING_S)
        seen.values.append(cluster.oracle.num_updates)
        await asyncio.sleep(ABSENCE_S - DRAINING_S)
        seen.values.append(cluster.oracle.num_updates)
        cluster.actors[0].hold(held=False)
        await asyncio.sleep(DRAINING_S)
        seen.values.append(cluster.oracle.num_updates)

    report = run(lose_all_actors, max_lag=1)
    paused, still_paused, resumed = seen.values
    assert paused == still_paused < resumed
    assert report.updates > resumed


@pytest.mark.parametrize("max_running", [1, 2])
def test_actors_that_are_killed_while_they_hold_every_task_cost_no_task_deadline(
    max_running: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kill costs every task a delivery; before the deadline of the sweep only further deliveries help."""
    monkeypatch.setattr(cluster_module, "TASK_DEADLINE_S", 600.0)
    seen = Observed()

    async def kill_actors_with_all_work(cluster: SimulatedCluster, _rng: random.Random) -> None:
        if not await seen.begins():
            return
        for pace in cluster.actor_paces:
            pace.rollout_s = 60.0
        for _ in range(KILLS):
            await asyncio.sleep(REDELIVERED_S)
            for actor in cluster.actors:
                await actor.kill()
                actor.start()
        seen.values.append(cluster.oracle.num_updates)
        for pace in cluster.actor_paces:
            pace.rollout_s = cluster.scenario.rollout_s
        await asyncio.sleep(RESUMED_AFTER * REDELIVERED_S)
        seen.values.append(cluster.oracle.num_updates)

    scenario = msgspec.structs.replace(
        draw_scenario(5, ticks=TICKS, max_lag=4),
        **{"kind": "segments", "group_size": 1, "batch_size": 1, "max_running": max_running},
        **{"num_actors": 2, "policy_delays_s": (0.0, 0.3), "slots": 1, "prefetch": 1},
    )
    report = check(simulate(scenario, faults={kill_actors_with_all_work: 1}))
    after_kills, resumed = seen.values
    assert after_kills < resumed <= report.updates


def test_ticks_of_a_run_are_enough_for_these_faults() -> None:
    assert WARM_UP_S + ABSENCE_S + 2 * DRAINING_S < TICKS / 2 * TICK_S
    assert WARM_UP_S + (KILLS + RESUMED_AFTER) * REDELIVERED_S < TICKS / 2 * TICK_S
