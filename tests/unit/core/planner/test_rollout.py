"""Synchronous and asynchronous steps against closed forms and against a simulation of the same loop."""

import heapq
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.distributions import Exponential, Fixed, Lognormal
from tidegate.core.errors import ConfigError
from tidegate.core.planner.rollout import RolloutLoop, plan_rollouts
from tidegate.core.planner.tails import harmonic

EIGHT = RolloutLoop(rollout=Exponential(0.040), num_slots=8, group=8, train_s=0.010)


def test_eight_synchronous_actors_make_67_samples_a_second() -> None:
    step = plan_rollouts(EIGHT).synchronous
    assert step.samples_per_s == pytest.approx(8 / (0.040 * harmonic(8) + 0.010))
    assert step.samples_per_s == pytest.approx(67.4, abs=0.05)


@pytest.mark.parametrize(("num_actors", "round_ms"), [(8, 118.714), (32, 172.340), (128, 227.326)])
def test_synchronous_round_is_split_into_work_straggler_wait_and_learner_stall(
    num_actors: int, round_ms: float
) -> None:
    loop = msgspec.structs.replace(EIGHT, num_slots=num_actors, group=num_actors)
    step = plan_rollouts(loop).synchronous
    assert step.wall_s * 1e3 == pytest.approx(round_ms, abs=0.001)
    assert step.work_s == pytest.approx(0.040)
    assert step.straggler_wait_s == pytest.approx(0.040 * (harmonic(num_actors) - 1))
    assert step.learner_stall_s == 0.010
    assert step.learner_idle_ratio == pytest.approx(1 - 10 / round_ms, abs=1e-5)
    assert step.actor_idle_ratio == pytest.approx(1 - 40 / round_ms, abs=1e-5)


def test_eight_asynchronous_actors_and_a_learner_that_never_binds_make_200_at_lag_seven() -> None:
    loop = msgspec.structs.replace(EIGHT, group=1, train_s=0.0, max_lag=100)
    step = plan_rollouts(loop).asynchronous
    assert (step.samples_per_s, step.natural_lag) == (pytest.approx(200.0), pytest.approx(7.0))
    assert step.bound_by == "actors"


def test_learner_of_ten_milliseconds_and_one_sample_an_update_binds_at_a_hundred() -> None:
    step = plan_rollouts(msgspec.structs.replace(EIGHT, group=1)).asynchronous
    assert (step.samples_per_s, step.bound_by) == (pytest.approx(100.0), "learner")
    assert step.natural_lag is None, "without admission it grows without bound"
    assert step.lag_mean == 4.0, "with it the budget holds"
    assert step.actor_idle_ratio == pytest.approx(0.5)


def simulated(loop: RolloutLoop, *, seconds: float) -> tuple[float, float]:
    """The loop under the admission law, event by event: samples/s and mean lag. Exponential rollouts only."""
    rng = random.Random(3)
    group, mean_s = loop.group, loop.rollout.mean_s
    events: list[tuple[float, int, int]] = []  # (when, order, version at the start; -1 is the learner's)
    now, version, running, accepted, order, lags = 0.0, 0, 0, 0, 0, 0.0
    finished: list[int] = []
    busy = False
    while now < seconds:
        while running < loop.num_slots and (loop.max_lag + version + 1) * group > accepted + running:
            running, order = running + 1, order + 1
            heapq.heappush(events, (now + rng.expovariate(1 / mean_s), order, version))
        if not busy and len(finished) >= group:
            lags += sum(version - started for started in finished[:group])
            del finished[:group]
            busy, order = True, order + 1
            heapq.heappush(events, (now + loop.train_s, order, -1))
            continue
        now, _, started = heapq.heappop(events)
        if started < 0:
            busy, version = False, version + 1
        else:
            running, accepted = running - 1, accepted + 1
            finished.append(started)
    return version * group / now, lags / (version * group)


@pytest.mark.parametrize(
    ("num_slots", "group", "train_s", "max_lag"),
    [(8, 8, 0.010, 100), (32, 32, 0.030, 100), (16, 4, 0.004, 100), (8, 8, 0.010, 0), (32, 8, 0.010, 1)],
    ids=["overlap", "wide", "narrow", "synchronous", "tight budget"],
)
def test_closed_forms_meet_a_simulation_of_the_admission_law(
    num_slots: int, group: int, train_s: float, max_lag: int
) -> None:
    loop = RolloutLoop(
        rollout=Exponential(0.040), num_slots=num_slots, group=group, train_s=train_s, max_lag=max_lag
    )
    rate, lag = simulated(loop, seconds=60.0)
    step = plan_rollouts(loop).asynchronous
    assert step.samples_per_s == pytest.approx(rate, rel=0.03)
    assert step.lag_mean == pytest.approx(lag, rel=0.03)


def test_more_rollouts_than_places_are_made_in_turn() -> None:
    """Memoryless: K − N completions at rate N/μ, then the slowest of the last N."""
    step = plan_rollouts(msgspec.structs.replace(EIGHT, group=32)).synchronous
    assert step.rollout_tail_s == pytest.approx(0.040 * (24 / 8 + harmonic(8)))


def test_without_tail_and_training_asynchrony_gains_nothing() -> None:
    plan = plan_rollouts(RolloutLoop(rollout=Fixed(1.0), num_slots=8, group=8, train_s=0.01))
    assert plan.speedup == pytest.approx(1.01)
    assert plan.dominant == "rollouts"
    assert plan.recommendation.startswith("Stay synchronous")
    assert "add actors" in plan.recommendation


def test_heavy_tail_is_named_as_what_asynchrony_hides() -> None:
    plan = plan_rollouts(RolloutLoop(rollout=Lognormal(1.0, 1.0), num_slots=16, group=16, train_s=0.5))
    assert plan.dominant == "stragglers"
    assert plan.dominant_share == pytest.approx(2.4351 / 3.9351, abs=1e-4)
    assert plan.speedup == pytest.approx(3.9351, rel=1e-3)
    assert "Stragglers take 62% of a synchronous step, and overlap hides them." in plan.recommendation


def test_training_that_dominates_calls_for_replicas() -> None:
    plan = plan_rollouts(RolloutLoop(rollout=Exponential(1.0), num_slots=16, group=16, train_s=10.0))
    assert (plan.dominant, plan.asynchronous.bound_by) == ("train", "learner")
    assert "add a learner replica" in plan.recommendation


def test_places_that_a_synchronous_step_has_no_work_for_are_named() -> None:
    plan = plan_rollouts(RolloutLoop(rollout=Exponential(1.0), num_slots=40, group=16, train_s=0.1))
    assert "A synchronous step uses 16 of 40 slots." in plan.recommendation


def test_freshness_costs_only_past_the_wall() -> None:
    fresh = msgspec.structs.replace(EIGHT, group=2, train_s=0.0, max_lag=100)
    assert plan_rollouts(fresh).asynchronous.freshness == 1.0, "lag 3.5, wall 4"
    stale = plan_rollouts(msgspec.structs.replace(fresh, group=1)).asynchronous
    assert stale.freshness == pytest.approx(1 / (1 + 0.03 * (7 - 4)))
    assert stale.effective_wall_s == pytest.approx(stale.wall_s * 1.09)


def test_rewards_and_weights_are_paid_in_turn_and_overlapped_otherwise() -> None:
    loop = msgspec.structs.replace(EIGHT, reward=Fixed(0.020), weight_sync_s=0.005)
    plan = plan_rollouts(loop)
    assert plan.synchronous.wall_s == pytest.approx(plan_rollouts(EIGHT).synchronous.wall_s + 0.025)
    assert plan.asynchronous.wall_s == pytest.approx(0.045), "actors pay for the swap, rewards overlap"
    assert plan.asynchronous.natural_lag == pytest.approx(1 + 0.035 / 0.045)


LOOPS = st.builds(
    RolloutLoop,
    rollout=st.one_of(
        st.builds(Exponential, st.floats(0.01, 10)),
        st.builds(Lognormal, st.floats(0.01, 10), st.floats(0, 3)),
    ),
    num_slots=st.integers(1, 200),
    group=st.integers(1, 200),
    train_s=st.floats(0.0, 10.0),
    weight_sync_s=st.floats(0.0, 1.0),
    max_lag=st.integers(0, 32),
)


@given(loop=LOOPS)
def test_parts_of_a_step_add_up_and_shares_are_shares(loop: RolloutLoop) -> None:
    plan = plan_rollouts(loop)
    step = plan.synchronous
    parts = (
        step.work_s + step.straggler_wait_s + step.reward_tail_s + step.learner_stall_s + step.weight_sync_s
    )
    assert parts == pytest.approx(step.wall_s)
    assert 0.0 < plan.dominant_share <= 1.0 + 1e-9
    for ratio in (
        step.actor_idle_ratio,
        step.learner_idle_ratio,
        plan.asynchronous.actor_idle_ratio,
        plan.asynchronous.learner_idle_ratio,
    ):
        assert -1e-9 <= ratio <= 1.0
    assert plan.asynchronous.lag_mean <= loop.max_lag


@given(loop=LOOPS, more=st.integers(1, 100))
def test_more_places_never_slow_an_asynchronous_step(loop: RolloutLoop, more: int) -> None:
    wider = msgspec.structs.replace(loop, num_slots=loop.num_slots + more, max_lag=max(1, loop.max_lag))
    same = msgspec.structs.replace(loop, max_lag=max(1, loop.max_lag))
    assert plan_rollouts(wider).asynchronous.wall_s <= plan_rollouts(same).asynchronous.wall_s * (1 + 1e-9)


@pytest.mark.parametrize(
    "changes", [{"num_slots": 0}, {"group": 0}, {"train_s": -1.0}, {"train_s": math.nan}, {"max_lag": -1}]
)
def test_invalid_step_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        plan_rollouts(msgspec.structs.replace(EIGHT, **changes))
