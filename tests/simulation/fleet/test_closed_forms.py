"""The fleet against closed forms: straggler walls, independent actors, a learner that is the bottleneck."""

import math

import msgspec
import pytest

from tidegate.core.distributions import Fixed, parse_distribution
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.report import FleetReport, simulate_fleet

pytestmark = pytest.mark.simulation

ROLLOUT = parse_distribution("exp:0.040")
LEARN = Fixed(0.010)
TOLERANCE = 0.02


def harmonic(count: int) -> float:
    return sum(1 / number for number in range(1, count + 1))


def asynchronous(*, horizon_s: float, admission: bool, max_lag: int | None) -> FleetReport:
    plan = FleetPlan(actors=8, rollout=ROLLOUT, learn=LEARN, admission=admission, max_lag=max_lag)
    return simulate_fleet(plan, horizon_s=horizon_s)


@pytest.mark.parametrize(("actors", "rounds"), [(8, 4000), (32, 1500), (128, 700)])
def test_synchronous_round_is_the_straggler_wall_and_the_learner(actors: int, rounds: int) -> None:
    wall_s = 0.040 * harmonic(actors)
    plan = FleetPlan(actors=actors, rollout=ROLLOUT, learn=LEARN, batch_size=actors, max_lag=0)
    report = simulate_fleet(plan, horizon_s=rounds * (wall_s + 0.010))
    assert report.mode == "sync"
    assert report.round.total_s == pytest.approx(wall_s + 0.010, rel=TOLERANCE)
    assert report.round.rollout_s == pytest.approx(0.040, rel=TOLERANCE)
    assert report.round.straggler_wait_s == pytest.approx(wall_s - 0.040, rel=TOLERANCE)
    assert report.round.learner_stall_s == pytest.approx(0.010, rel=TOLERANCE)
    assert report.samples_per_s == pytest.approx(actors / (wall_s + 0.010), rel=TOLERANCE)
    assert report.lag_max == 0


def test_actors_that_may_hold_more_still_share_a_synchronous_batch_evenly() -> None:
    plan = FleetPlan(actors=8, rollout=ROLLOUT, learn=LEARN, batch_size=8, max_lag=0, prefetch=1)
    report = simulate_fleet(plan, horizon_s=300)
    assert report.round.total_s == pytest.approx(0.040 * harmonic(8) + 0.010, rel=TOLERANCE)


def test_task_held_by_a_busy_actor_leaves_another_idle() -> None:
    plan = FleetPlan(actors=8, rollout=ROLLOUT, learn=LEARN, batch_size=2, max_lag=4)
    free = simulate_fleet(plan, horizon_s=100)
    holding = simulate_fleet(msgspec.structs.replace(plan, prefetch=1), horizon_s=100)
    assert holding.samples_per_s < 0.95 * free.samples_per_s


def test_eight_synchronous_actors_make_67_samples_a_second() -> None:
    plan = FleetPlan(actors=8, rollout=ROLLOUT, learn=LEARN, batch_size=8, max_lag=0)
    assert simulate_fleet(plan, horizon_s=600).samples_per_s == pytest.approx(67.4, rel=TOLERANCE)


def test_free_actors_make_200_samples_a_second_at_a_mean_lag_of_their_number_less_one() -> None:
    plan = FleetPlan(actors=8, rollout=ROLLOUT, admission=False, max_lag=None)
    report = simulate_fleet(plan, horizon_s=200)
    assert report.samples_per_s == pytest.approx(200, rel=TOLERANCE)
    assert report.lag_mean == pytest.approx(7, rel=TOLERANCE)
    assert report.actor_idle_ratio == pytest.approx(0, abs=1e-9)


def test_law_with_a_wide_budget_leaves_actors_as_free_as_no_law() -> None:
    plan = FleetPlan(actors=8, rollout=ROLLOUT, max_lag=1024)
    report = simulate_fleet(plan, horizon_s=100)
    assert report.samples_per_s == pytest.approx(200, rel=TOLERANCE)
    assert report.lag_mean == pytest.approx(7, rel=TOLERANCE)


def test_learner_binds_and_without_admission_queue_and_lag_grow_with_time() -> None:
    short, long = (asynchronous(horizon_s=horizon_s, admission=False, max_lag=None) for horizon_s in (10, 20))
    for report, horizon_s in ((short, 10), (long, 20)):
        assert report.samples_per_s == pytest.approx(100, rel=TOLERANCE)
        # 200 a second come in and 100 go out.
        assert report.queue == pytest.approx(100 * horizon_s, rel=0.1)
        assert report.newest_lag == report.queue
        assert report.learner_idle_ratio < 0.02
    assert long.lag_mean > 1.8 * short.lag_mean


def test_learner_binds_and_with_admission_queue_and_lag_stay_inside_the_budget() -> None:
    for horizon_s in (10, 20):
        report = asynchronous(horizon_s=horizon_s, admission=True, max_lag=16)
        assert report.samples_per_s == pytest.approx(100, rel=TOLERANCE)
        assert report.lag_max <= 16
        assert report.queue_max <= 17
        assert report.learner_idle_ratio < 0.02


def test_pacing_wastes_nothing_and_costs_throughput() -> None:
    plan = FleetPlan(actors=8, rollout=parse_distribution("lognormal:1:1"), max_lag=8, batch_size=2)
    free = simulate_fleet(plan, horizon_s=2000)
    paced = simulate_fleet(msgspec.structs.replace(plan, pacing=True), horizon_s=2000)
    assert free.waste_ratio > 0.001
    assert paced.waste_ratio == 0
    assert paced.samples_per_s < free.samples_per_s


@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_lag_never_exceeds_the_budget(max_lag: int) -> None:
    assert asynchronous(horizon_s=20, admission=True, max_lag=max_lag).lag_max <= max_lag


def classic(actors: int) -> FleetReport:
    """Actors of 1,000 steps a second in segments of 64, a learner of 12,000 a second in batches of 256."""
    plan = FleetPlan(
        actors=actors,
        rollout=Fixed(0.064),
        learn=Fixed(256 / 12_000),
        batch_size=4,
        samples_per_trajectory=64,
        admission=False,
        max_lag=None,
    )
    return simulate_fleet(plan, horizon_s=60)


def test_twelve_actors_and_the_learner_are_balanced() -> None:
    report = classic(12)
    assert report.samples_per_s == pytest.approx(12_000, rel=TOLERANCE)
    assert report.learner_idle_ratio < 0.01
    assert report.newest_lag <= 3


def test_sixteen_actors_leave_a_queue_of_240_000_samples_after_a_minute() -> None:
    report = classic(16)
    assert report.samples_per_s == pytest.approx(12_000, rel=TOLERANCE)
    assert report.queue == pytest.approx(240_000, rel=TOLERANCE)
    assert report.newest_lag == pytest.approx(937.5, rel=TOLERANCE)


def test_replicas_speed_the_learner_up_by_their_efficiency() -> None:
    plan = FleetPlan(actors=64, rollout=ROLLOUT, learn=Fixed(0.010), batch_size=4, max_lag=64, replicas=3)
    report = simulate_fleet(plan, horizon_s=10)
    assert report.samples_per_s == pytest.approx(4 * 3 * 0.92 / 0.010, rel=TOLERANCE)


def test_environment_workers_bound_the_rate() -> None:
    plan = FleetPlan(
        actors=16, rollout=ROLLOUT, max_lag=64, max_running=24, environments=2, score=Fixed(0.020)
    )
    report = simulate_fleet(plan, horizon_s=20)
    assert report.samples_per_s == pytest.approx(100, rel=TOLERANCE)
    assert report.environment_busy_ratio == pytest.approx(1, rel=TOLERANCE)


def test_synchronous_actors_wait_for_weights_as_deep_as_they_are_in_the_tree() -> None:
    plan = FleetPlan(
        actors=6, rollout=Fixed(0.1), batch_size=6, max_lag=0, announce_s=0.005, pull_s=0.02, fan_out=2
    )
    report = simulate_fleet(plan, horizon_s=20)
    # Two nodes are one pull away from the root, four two pulls.
    assert report.round.total_s == pytest.approx(0.1 + 0.005 + 0.04, rel=TOLERANCE)
    assert report.propagation_s_p95 == pytest.approx(0.045)
    # The queue waits for the announcement; from then on an actor holds its task and pulls.
    assert report.round.weights_wait_s == pytest.approx((2 * 0.02 + 4 * 0.04) / 6, rel=TOLERANCE)


def test_long_tailed_rollouts_make_a_synchronous_round_as_long_as_their_longest() -> None:
    rollout = parse_distribution("lognormal:1:1")
    plan = FleetPlan(actors=16, rollout=rollout, batch_size=16, max_lag=0)
    report = simulate_fleet(plan, horizon_s=8000)
    assert report.round.total_s == pytest.approx(mean_of_the_longest(16, mean=1.0, spread=1.0), rel=TOLERANCE)


def mean_of_the_longest(count: int, *, mean: float, spread: float) -> float:
    """By numerical integration of 1 - F(t)^count."""
    scale = math.sqrt(math.log(1 + spread**2))
    centre = math.log(mean) - scale**2 / 2
    step = 0.001
    total = 0.0
    for index in range(60_000):
        at = (index + 0.5) * step
        share_below = 0.5 * (1 + math.erf((math.log(at) - centre) / (scale * math.sqrt(2))))
        total += (1 - share_below**count) * step
    return total


def test_same_seed_is_the_same_run_and_another_seed_another() -> None:
    plan = FleetPlan(actors=8, rollout=ROLLOUT, learn=LEARN, seed=3)
    first, second = (simulate_fleet(plan, horizon_s=5) for _ in range(2))
    assert first == second
    other = FleetPlan(actors=8, rollout=ROLLOUT, learn=LEARN, seed=4)
    assert simulate_fleet(other, horizon_s=5).samples != first.samples
