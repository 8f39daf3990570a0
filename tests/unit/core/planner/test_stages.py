"""The bottleneck, and how queue and lag grow: figures to check by hand, and what must hold of all loops."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ConfigError
from tidegate.core.planner.rebalance import replicas_needed
from tidegate.core.planner.scaling import check_curve, speedup
from tidegate.core.planner.stages import Loop, balance_of, throughput
from tidegate.core.prices import Prices

CURVE = ((1, 1.0), (2, 1.8), (4, 3.0))


def loop(num_actors: int, *, num_replicas: int = 1) -> Loop:
    return Loop(
        num_actors=num_actors,
        actor_rate=1_000.0,
        learner_rate=12_000.0,
        batch_size=256,
        num_replicas=num_replicas,
    )


def test_twelve_actors_balance_a_learner_of_twelve_thousand() -> None:
    balance = balance_of(loop(12))
    assert balance.bottleneck == "balanced"
    assert balance.replay_ratio == 1.0
    assert (balance.unbounded.queue, balance.budget_lasts_s) == (0.0, None)
    assert [stage.utilisation for stage in balance.stages] == [1.0, 1.0]


def test_sixteen_actors_pile_up_240000_samples_in_a_minute_unless_admission_holds_them() -> None:
    balance = balance_of(loop(16), after_s=60.0)
    assert balance.bottleneck == "learner"
    assert (balance.unbounded.queue, balance.unbounded.lag_updates) == (240_000.0, 937.5)
    assert (balance.bounded.queue, balance.bounded.lag_updates) == (5 * 256, 4.0)
    assert balance.budget_lasts_s == pytest.approx(4 * 256 / 4_000)


def test_eight_actors_outrun_a_learner_of_one_sample_in_ten_milliseconds_only_without_admission() -> None:
    """Rollouts of 40 ms: 200/s against 100/s. Lag and queue grow by a hundred a second, or end at the budget."""
    eight = Loop(num_actors=8, actor_rate=25.0, learner_rate=100.0, batch_size=1)
    minute, two = balance_of(eight, after_s=60.0), balance_of(eight, after_s=120.0)
    assert minute.throughput_per_s == 100.0
    assert (minute.unbounded.queue, minute.unbounded.lag_updates) == (6_000.0, 6_000.0)
    assert (two.unbounded.queue, two.unbounded.lag_updates) == (12_000.0, 12_000.0)
    assert minute.bounded == two.bounded
    assert (two.bounded.queue, two.bounded.lag_updates) == (5.0, 4.0)


@pytest.mark.parametrize(("num_actors", "utilisation"), [(18, 2 / 3), (24, 0.5)])
def test_more_actors_than_the_learner_takes_are_used_in_part(num_actors: int, utilisation: float) -> None:
    balance = balance_of(loop(num_actors))
    assert balance.bottleneck == "learner"
    assert balance.stage("actor").utilisation == pytest.approx(utilisation)
    assert balance.stage("learner").utilisation == 1.0


def test_learner_of_two_replicas_is_no_bottleneck_of_twenty_actors() -> None:
    speeds = [round(balance_of(loop(20, num_replicas=g)).stages[-1].capacity_per_s) for g in range(1, 9)]
    assert speeds == [12_000, 23_040, 33_120, 42_240, 50_400, 57_600, 63_840, 69_120]
    assert [balance_of(loop(20, num_replicas=g)).bottleneck for g in (1, 2)] == ["learner", "actor"]
    assert replicas_needed(loop(20)) == 2
    assert replicas_needed(loop(200)) is None, "thirteen replicas make 81,120/s by the model and no more"


def test_fewer_actors_than_the_learner_could_take_are_the_bottleneck() -> None:
    balance = balance_of(loop(8))
    assert balance.bottleneck == "actor"
    assert balance.stage("learner").utilisation == pytest.approx(2 / 3)
    assert balance.replay_ratio == pytest.approx(1.5)
    assert balance.updates_per_s == pytest.approx(8_000 / 256)


def test_optional_stages_bind_where_they_are_the_slowest() -> None:
    scored = msgspec.structs.replace(loop(12), num_environments=3, environment_rate=2_000.0)
    assert balance_of(scored).bottleneck == "environment"
    assert balance_of(scored).stage("actor").utilisation == pytest.approx(0.5)
    stored = msgspec.structs.replace(scored, store_rate=3_000.0)
    assert balance_of(stored).bottleneck == "store"
    assert balance_of(stored).throughput_per_s == 3_000.0


def test_cost_per_million_is_dollars_an_hour_over_samples_an_hour() -> None:
    prices = Prices(actor_usd_per_h=0.5, environment_usd_per_h=9.0, learner_usd_per_h=3.0)
    balance = balance_of(loop(12), prices=prices)
    assert balance.usd_per_h == 9.0
    assert balance.usd_per_million == pytest.approx(9.0 / (12_000 * 3600) * 1e6)


def test_measured_speedups_are_met_and_joined_by_straight_lines() -> None:
    assert [speedup(g, curve=check_curve(CURVE)) for g in (1, 2, 3, 4)] == [1.0, 1.8, pytest.approx(2.4), 3.0]


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        (((2, 1.9),), "start with 1:1"),
        (((1, 1.0), (2, 2.5)), "cannot be 2.5 times"),
        (((1, 1.0), (4, 3.0), (2, 1.8)), "after 4"),
        (((1, 1.0), (2, 0.0)), "above 0"),
    ],
)
def test_invalid_speedup_curve_is_refused(curve: tuple[tuple[int, float], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_curve(curve)


@pytest.mark.parametrize(("replicas", "curve"), [(14, ()), (0, ()), (5, CURVE)])
def test_replicas_beyond_the_curve_are_refused(replicas: int, curve: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ConfigError, match="not known"):
        speedup(replicas, curve=curve)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_actors": 0},
        {"actor_rate": 0.0},
        {"learner_rate": float("nan")},
        {"batch_size": 0},
        {"num_environments": 2},
        {"store_rate": -1.0},
        {"store_rate": float("nan")},
        {"max_lag": -1},
        {"num_replicas": 99},
    ],
)
def test_invalid_loop_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        balance_of(msgspec.structs.replace(loop(12), **changes))


RATES = st.floats(0.1, 1e6)
LOOPS = st.builds(
    Loop,
    num_actors=st.integers(1, 10_000),
    actor_rate=RATES,
    learner_rate=RATES,
    batch_size=st.integers(1, 4096),
    num_replicas=st.integers(1, 13),
    num_environments=st.integers(0, 100),
    environment_rate=RATES,
    store_rate=st.one_of(st.just(0.0), RATES),
    max_lag=st.integers(0, 64),
)


@given(loop=LOOPS, more=st.integers(1, 1000))
def test_more_actors_never_lower_throughput(loop: Loop, more: int) -> None:
    assert throughput(msgspec.structs.replace(loop, num_actors=loop.num_actors + more)) >= throughput(loop)


@given(loop=LOOPS, after_s=st.floats(0.0, 1e5))
def test_utilisation_is_at_most_one_and_the_bottleneck_reaches_it(loop: Loop, after_s: float) -> None:
    balance = balance_of(loop, after_s=after_s)
    shares = [stage.utilisation for stage in balance.stages]
    assert all(0.0 < share <= 1.0 for share in shares)
    assert max(shares) == 1.0
    assert balance.usd_per_million > 0.0
    assert balance.bounded.lag_updates <= min(loop.max_lag, balance.unbounded.lag_updates)
    assert balance.bounded.queue <= min((loop.max_lag + 1) * loop.batch_size, balance.unbounded.queue)
