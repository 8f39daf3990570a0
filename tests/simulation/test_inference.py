"""The inference service among the others under seeded faults: its own code, and the actors' side of its streams."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.simulation.reports import check
from tests.simulation.seeds import seeds
from tidegate.actor.engines.acting import Actions
from tidegate.actor.engines.inference_env import RemoteActing
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import PolicySnapshot, Task
from tidegate.inference import loops as inference_loops
from tidegate.inference.acting import PreparedVersion
from tidegate.launch.services import REQUIRED
from tidegate.models.policy_port import StepPolicy, VersionRunner
from tidegate.sim.cluster import INFERENCE_WAIT_S, SimulatedCluster
from tidegate.sim.faults import Fault, drain_inference, kill_inference, slow_inference
from tidegate.sim.scenario import MAX_LAGS, Scenario, draw_scenario
from tidegate.sim.simulation import Report, simulate

pytestmark = pytest.mark.simulation

TICKS = 1200
WARM_UP_S = 3.0
# What was finished when the service went is stored and trained within this.
DRAINING_S = 3.0
ABSENCE_S = 9.0


def scenario_of(seed: int, *, max_lag: int, faults: bool = True, **changes: Any) -> Scenario:
    drawn = draw_scenario(seed, ticks=TICKS, max_lag=max_lag, faults=faults, central_inference=True)
    return msgspec.structs.replace(drawn, **changes)


def two_actors(seed: int, *, max_lag: int, faults: bool = True) -> Scenario:
    return scenario_of(
        seed,
        max_lag=max_lag,
        faults=faults,
        num_actors=2,
        policy_delays_s=(0.0, 0.3),
        rollout_s=0.2,
        update_s=0.1,
        max_age_s=60.0,
        max_resident=400,
        small_streams=64,
    )


@pytest.mark.parametrize("max_lag", MAX_LAGS)
@pytest.mark.parametrize("seed", seeds(1, more=9))
def test_invariants_hold_under_faults_with_central_inference(seed: int, max_lag: int) -> None:
    report = check(simulate(scenario_of(seed, max_lag=max_lag)))
    assert report.ticks == TICKS
    assert report.faults > 0
    assert report.updates > 0
    assert max(report.trained_by_lag) <= max_lag


@pytest.mark.parametrize("fault", [kill_inference, drain_inference, slow_inference])
@pytest.mark.parametrize("seed", seeds(1, more=4))
def test_invariants_hold_whatever_befalls_the_service_alone(seed: int, fault: Fault) -> None:
    report = check(simulate(two_actors(seed, max_lag=1), faults={fault: 1}))
    assert report.faults > 3
    assert report.updates > 0


def test_without_faults_nothing_is_lost_and_no_process_ends() -> None:
    report = check(simulate(msgspec.structs.replace(two_actors(1, max_lag=1, faults=False), ticks=400)))
    # Two actors, and the service besides one of each other.
    assert report.starts == len(REQUIRED) + 2
    assert report.redelivered == 0
    assert report.updates > 20


def test_same_seed_gives_the_same_run() -> None:
    first, second = (simulate(scenario_of(7, max_lag=1, ticks=400)) for _ in range(2))
    assert first == second
    assert first.messages > 0


def test_training_pauses_without_the_service_and_goes_on_with_its_next_process() -> None:
    seen: list[int] = []
    restarts: list[int] = []

    async def lose_inference(cluster: SimulatedCluster, _rng: random.Random) -> None:
        if seen:
            return
        seen.append(0)
        await asyncio.sleep(WARM_UP_S)
        service = cluster.hosts["inference"]
        service.hold(held=True)
        await service.kill()
        await asyncio.sleep(DRAINING_S)
        seen.append(cluster.oracle.num_updates)
        await asyncio.sleep(ABSENCE_S - DRAINING_S)
        seen.append(cluster.oracle.num_updates)
        service.hold(held=False)
        await asyncio.sleep(DRAINING_S + INFERENCE_WAIT_S)
        seen.append(cluster.oracle.num_updates)
        restarts.extend(host.num_starts for host in cluster.actors)

    report = check(simulate(two_actors(5, max_lag=4), faults={lose_inference: 1}))
    _, paused, still_paused, resumed = seen
    assert 0 < paused == still_paused < resumed <= report.updates
    assert restarts == [1, 1], "an actor ended because the service was away"


def first_failure(seeds_tried: Sequence[int]) -> Report:
    for seed in seeds_tried:
        report = simulate(scenario_of(seed, max_lag=4))
        if not report.passed:
            return report
    pytest.fail("the planted defect was not caught")


def test_catches_a_service_that_names_a_version_before_it_acts_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, newest = inference_loops.prepare, dict[StepPolicy, VersionRunner]()

    def prepare(policy: StepPolicy, snapshot: PolicySnapshot, *, threads: int) -> PreparedVersion:
        prepared = real(policy, snapshot, threads=threads)
        before = newest.get(policy, prepared.run)
        newest[policy] = prepared.run
        return PreparedVersion(snapshot.version, before)

    monkeypatch.setattr(inference_loops, "prepare", prepare)
    report = first_failure(range(3))
    # A version that did not act is wrong in the record, and so is the lag that follows from it.
    assert report.violations[0].startswith(("I5:", "I1: the ledger has lag")), report.violations


def test_catches_an_actor_that_records_the_version_of_its_first_step_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, act, first = RemoteActing.begin, RemoteActing.act, dict[RemoteActing, PolicyVersion]()

    def begin_with(acting: RemoteActing, task: Task) -> PolicyVersion:
        first[acting] = begin(acting, task)
        return first[acting]

    def act_under_the_first(acting: RemoteActing, *arguments: Any) -> Actions | None:
        acted = act(acting, *arguments)
        return None if acted is None else acted._replace(version=first[acting])

    monkeypatch.setattr(RemoteActing, "begin", begin_with)
    monkeypatch.setattr(RemoteActing, "act", act_under_the_first)
    report = first_failure(range(3))
    assert report.violations[0].startswith("I5:"), report.violations
