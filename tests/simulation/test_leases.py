"""Leases that expire: strangers that keep batches, learners that are cut off, stores that restart with leases open."""

import msgspec
import pytest

from tests.simulation.reports import check
from tests.simulation.seeds import seeds
from tidegate.sim.cluster import LEASE_TIMEOUT_S
from tidegate.sim.faults import (
    Fault,
    isolate_learner,
    kill_learner,
    kill_one,
    slow_learner,
    steal_batch,
)
from tidegate.sim.scenario import draw_scenario
from tidegate.sim.simulation import simulate
from tidegate.trajectory_store.store import Store

pytestmark = pytest.mark.simulation

TICKS = 1600
LEASES: dict[Fault, int] = {steal_batch: 6, isolate_learner: 3, kill_learner: 1, kill_one: 3, slow_learner: 1}


@pytest.mark.parametrize("max_lag", [0, pytest.param(1, marks=pytest.mark.extended), 4])
@pytest.mark.parametrize("pair", seeds(1, more=3))
def test_batches_whose_leases_expire_are_trained_later_and_never_twice(
    pair: int, max_lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired: list[str] = []
    real = Store.expire_leases

    def expire_leases(store: Store, *, monotonic_s: float, now_s: float, is_away: bool) -> list[object]:
        ended = real(store, monotonic_s=monotonic_s, now_s=now_s, is_away=is_away)
        expired.extend(lease.batch_id for lease in ended)
        return list(ended)

    monkeypatch.setattr(Store, "expire_leases", expire_leases)
    for seed in (2 * pair, 2 * pair + 1):
        report = check(simulate(draw_scenario(seed, ticks=TICKS, max_lag=max_lag), faults=LEASES))
        assert report.updates > 0
    assert expired


def test_update_that_takes_longer_than_a_lease_lasts_keeps_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.expire_leases

    def expire_leases(store: Store, *, monotonic_s: float, now_s: float, is_away: bool) -> list[object]:
        ended = real(store, monotonic_s=monotonic_s, now_s=now_s, is_away=is_away)
        assert not ended
        return list(ended)

    monkeypatch.setattr(Store, "expire_leases", expire_leases)
    scenario = msgspec.structs.replace(
        draw_scenario(1, ticks=TICKS, max_lag=4, faults=False), max_age_s=60.0, update_s=1.5 * LEASE_TIMEOUT_S
    )
    assert check(simulate(scenario)).updates > 5
