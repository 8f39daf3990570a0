"""The platform under seeded faults: the services' own code on a virtual clock, invariants checked every tick.

A failure names its invariant and its seed; the printed `make sim SEED=...` replays it, event by event.
"""

from functools import cache

import msgspec
import pytest

from tests.simulation.reports import check
from tests.simulation.seeds import seeds
from tidegate.launch.services import REQUIRED
from tidegate.sim.faults import FAULTS, request_rollback
from tidegate.sim.scenario import MAX_LAGS, draw_scenario
from tidegate.sim.simulation import Report, simulate

pytestmark = pytest.mark.simulation

SHORT_TICKS = 1200
LONG_TICKS = 10_000


@pytest.mark.parametrize("max_lag", MAX_LAGS)
@pytest.mark.parametrize("seed", seeds(1, more=11))
def test_invariants_hold_under_faults_at_every_budget(seed: int, max_lag: int) -> None:
    report = check(simulate(draw_scenario(seed, ticks=SHORT_TICKS, max_lag=max_lag)))
    assert report.ticks == SHORT_TICKS
    assert report.faults > 0
    assert report.updates > 0
    assert max(report.trained_by_lag) <= max_lag


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_invariants_hold_for_ten_thousand_ticks_of_faults() -> None:
    # So many updates, and ways back to an older one, that a restore gives trajectories back.
    scenario = msgspec.structs.replace(
        draw_scenario(17, ticks=LONG_TICKS, max_lag=4), checkpoint_every_steps=8, update_s=0.1, rollout_s=0.2
    )
    report = check(simulate(scenario, faults={**FAULTS, request_rollback: 10}))
    assert report.ticks == LONG_TICKS
    # The run covers every kind of trouble, and training progressed all the same.
    assert report.faults > 100
    assert report.revived > 0
    assert report.messages_lost > 0
    assert report.redelivered > 0
    assert {"stale", "expired", "failed"} <= report.dropped.keys()
    assert report.updates > 200


@pytest.mark.parametrize("max_lag", MAX_LAGS)
def test_without_faults_training_uses_the_budget_and_recovers_nothing(max_lag: int) -> None:
    report = check(fair_run(max_lag=max_lag))
    # Two actors and one of each other service.
    assert report.starts == len(REQUIRED) + 1, "a process started twice"
    assert report.revived == 0
    assert report.redelivered == 0
    assert report.updates > 20
    assert max(report.trained_by_lag) <= max_lag


def test_at_max_lag_zero_every_trajectory_is_of_the_policy_it_updates_and_none_is_wasted() -> None:
    report = check(fair_run(max_lag=0))
    assert report.trained_by_lag.keys() == {0}
    assert report.dropped == {}


def test_a_larger_budget_overlaps_rollouts_with_training() -> None:
    updates = [check(fair_run(max_lag=max_lag)).updates for max_lag in (0, 1, 4)]
    assert updates == sorted(updates)
    assert updates[-1] > 1.3 * updates[0]


@cache
def fair_run(*, max_lag: int) -> Report:
    """A cluster of two equal actors, without faults."""
    scenario = msgspec.structs.replace(
        draw_scenario(1, ticks=800, max_lag=max_lag, faults=False),
        kind="segments",
        group_size=1,
        batch_size=4,
        max_running=8,
        num_actors=2,
        num_environments=1,
        slots=1,
        prefetch=1,
        rollout_s=0.2,
        update_s=0.1,
        policy_delays_s=(0.0, 0.3),
        small_streams=64,
        max_resident=400,
    )
    return simulate(scenario)
