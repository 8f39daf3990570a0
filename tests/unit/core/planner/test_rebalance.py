"""The cheapest platform for the same work, against trying every size."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import num_examples
from tidegate.core.planner.rebalance import rebalance
from tidegate.core.planner.scaling import speedup
from tidegate.core.planner.stages import Loop, throughput
from tidegate.core.prices import Prices, usd_per_million

PRICES = Prices(actor_usd_per_h=0.50, environment_usd_per_h=0.25, learner_usd_per_h=3.00)
FORTY = Loop(num_actors=40, actor_rate=1_500.0, learner_rate=36_000.0, batch_size=256)


def test_rebalancing_releases_sixteen_of_forty_actors_before_a_learner_of_36000() -> None:
    found = rebalance(FORTY, prices=PRICES)
    assert (found.num_actors, found.num_replicas) == (24, 1)
    assert found.throughput_after_per_s == found.throughput_before_per_s == 36_000.0
    assert found.usd_per_million_before == pytest.approx(23.0 / (36_000 * 3600) * 1e6)
    assert found.usd_per_million_before == pytest.approx(0.17747, abs=1e-5)
    assert found.usd_per_million_after == pytest.approx(0.11574, abs=1e-5)
    assert found.saving == pytest.approx(1 - 15 / 23)
    assert found.sentence == (
        "Run 24 actors instead of 40: the same 36,000 samples/s for $0.1157 per million instead of $0.1775 (-35%)."
    )


def test_free_learner_replicas_are_added_before_actors_are_released() -> None:
    found = rebalance(FORTY, prices=Prices(actor_usd_per_h=0.5, learner_usd_per_h=0.0), target_per_s=60_000.0)
    assert (found.num_actors, found.throughput_after_per_s) == (40, 60_000.0)
    assert found.num_replicas == 2
    assert "2 learner replicas instead of 1: 60,000 samples/s (+67%)" in found.sentence


def test_balanced_loop_is_not_changed() -> None:
    found = rebalance(msgspec.structs.replace(FORTY, num_actors=24), prices=PRICES)
    assert not found.changes
    assert found.saving == 0.0
    assert "No other size" in found.sentence


def test_target_that_is_higher_is_reached_at_the_lowest_cost() -> None:
    found = rebalance(FORTY, prices=PRICES, target_per_s=60_000.0)
    assert found.num_replicas == 2
    assert found.throughput_after_per_s >= 60_000.0


def test_unreachable_target_is_reported_as_not_reached() -> None:
    found = rebalance(FORTY, prices=PRICES, target_per_s=1e9)
    assert found == rebalance(FORTY, prices=PRICES)


@pytest.mark.slow
@settings(max_examples=num_examples(60), deadline=None)
@given(
    num_actors=st.integers(1, 30),
    actor_rate=st.floats(10.0, 200.0),
    learner_rate=st.floats(10.0, 1_000.0),
    num_replicas=st.integers(1, 4),
    workers=st.integers(0, 8),
    worker_rate=st.floats(50.0, 500.0),
    prices=st.builds(
        Prices,
        actor_usd_per_h=st.floats(0.01, 10),
        environment_usd_per_h=st.floats(0.01, 10),
        learner_usd_per_h=st.floats(0.01, 10),
    ),
)
def test_no_size_that_does_the_work_is_cheaper(
    num_actors: int,
    actor_rate: float,
    learner_rate: float,
    num_replicas: int,
    workers: int,
    worker_rate: float,
    prices: Prices,
) -> None:
    curve = tuple((g, speedup(g)) for g in range(1, 5))
    loop = Loop(
        num_actors=num_actors,
        actor_rate=actor_rate,
        learner_rate=learner_rate,
        batch_size=8,
        num_replicas=num_replicas,
        num_environments=workers,
        environment_rate=worker_rate,
        scaling=curve,
    )
    found = rebalance(loop, prices=prices)
    assert found.usd_per_million_after > 0.0
    assert found.throughput_after_per_s >= found.throughput_before_per_s * (1 - 1e-6)
    cheapest = min(
        usd_per_million(
            prices.usd_per_h(num_actors=actors, num_environments=envs, num_learners=replicas),
            per_s=throughput(
                msgspec.structs.replace(loop, num_actors=actors, num_environments=envs, num_replicas=replicas)
            ),
        )
        for replicas in range(1, 5)
        for actors in range(1, 121)
        for envs in ([0] if not workers else range(1, 12))
        if throughput(
            msgspec.structs.replace(loop, num_actors=actors, num_environments=envs, num_replicas=replicas)
        )
        >= throughput(loop)
    )
    assert found.usd_per_million_after <= cheapest * (1 + 0.006), "half a percent is not worth a change"
