"""Which rollouts are cut and which continue; caps, their penalty, and early stops."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.distributions import Exponential, Lognormal
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, TrajectoryId
from tidegate.core.lengths import UNKNOWN, LengthCounts, SurvivalCurve
from tidegate.core.long_tail import (
    RATE_WINDOW,
    Continue,
    Cut,
    OverlongRule,
    PublishRate,
    RolloutUnderWay,
    capped_length,
    decide_rollout,
    may_stop_early,
    overlong_penalty,
)
from tidegate.core.records import Sampler, Trajectory
from tidegate.core.staleness import StalenessLimits

LIMITS = StalenessLimits(max_lag=4, max_age_s=300.0)


def curve_of(distribution: Exponential | Lognormal, *, num: int = 5000) -> SurvivalCurve:
    counts = LengthCounts(half_life=1e9)
    for index in range(num):
        counts.observe(distribution.quantile((index + 0.5) / num), ended=True)
    return counts.curve()


HEAVY = curve_of(Lognormal(2.0, 1.0))


def decide(
    elapsed_s: float,
    lag: int,
    *,
    versions_per_s: float = 1.0,
    limits: StalenessLimits = LIMITS,
    curve: SurvivalCurve = HEAVY,
    finish_chance_min: float = 0.1,
) -> Continue | Cut:
    return decide_rollout(
        RolloutUnderWay(elapsed_s=elapsed_s, lag=lag),
        curve,
        limits=limits,
        versions_per_s=versions_per_s,
        finish_chance_min=finish_chance_min,
    )


def test_rollout_with_budget_left_continues() -> None:
    decision = decide(0.5, 0)
    assert isinstance(decision, Continue)
    # F(5.5) against F(0.5), in closed form.
    truth = Lognormal(2.0, 1.0)
    expected = 1.0 - truth.survival(5.5) / truth.survival(0.5)
    assert decision.finish_chance == pytest.approx(expected, abs=0.01)


def test_rollout_unlikely_to_end_in_time_is_cut_with_a_reason() -> None:
    decision = decide(8.0, 4, versions_per_s=5.0)
    assert isinstance(decision, Cut)
    assert decision.reason == "stale"
    assert "end within 0.2 s more" in decision.detail
    assert "only 0 are left" in decision.detail


def test_rollout_beyond_the_budget_is_always_cut() -> None:
    for curve in (HEAVY, UNKNOWN):
        assert decide(0.1, 5, curve=curve, finish_chance_min=0.0) == Cut(
            "stale", "5 versions behind while running (max_lag 4)"
        )
        expired = decide(301.0, 0, curve=curve, finish_chance_min=0.0)
        assert isinstance(expired, Cut)
        assert expired.reason == "expired"


def test_rollout_without_estimates_continues() -> None:
    assert decide(8.0, 4, versions_per_s=100.0, curve=UNKNOWN) == Continue(None)
    assert decide(1e6, 0, limits=StalenessLimits(4, 1e9)) == Continue(None), (
        "no rollout of that length was observed"
    )


def test_age_alone_can_be_what_it_does_not_reach() -> None:
    decision = decide(299.9, 0, versions_per_s=0.0, curve=curve_of(Exponential(100.0)))
    assert isinstance(decision, Cut)
    assert (decision.reason, "max_age_s 300" in decision.detail) == ("expired", True)


@given(st.floats(0.0, 299.0), st.floats(0.0, 1e6))
def test_at_max_lag_zero_the_head_waits_and_no_rollout_is_cut_for_lag(
    elapsed_s: float, versions_per_s: float
) -> None:
    """A synchronous learner cannot publish past a rollout in flight; an earlier rate suggests that it could."""
    limits = StalenessLimits(max_lag=0, max_age_s=1e12)
    assert isinstance(decide(elapsed_s, 0, versions_per_s=versions_per_s, limits=limits), Continue)


@given(st.floats(0.01, 60.0), st.integers(0, 4), st.floats(0.0, 50.0), st.floats(0.0, 50.0))
def test_faster_publishing_never_saves_a_rollout(
    elapsed_s: float, lag: int, slow_per_s: float, more_per_s: float
) -> None:
    if isinstance(decide(elapsed_s, lag, versions_per_s=slow_per_s), Cut):
        assert isinstance(decide(elapsed_s, lag, versions_per_s=slow_per_s + more_per_s), Cut)


@given(st.floats(0.01, 60.0), st.integers(0, 4), st.floats(0.0, 50.0))
def test_patience_never_cuts_more(elapsed_s: float, lag: int, versions_per_s: float) -> None:
    patient = decide(elapsed_s, lag, versions_per_s=versions_per_s, finish_chance_min=0.05)
    if isinstance(patient, Cut):
        assert isinstance(decide(elapsed_s, lag, versions_per_s=versions_per_s, finish_chance_min=0.5), Cut)


# -- the rate ----------------------------------------------------------------------------------------------------------


def version(step: int, lineage: str = "0-a") -> PolicyVersion:
    return PolicyVersion(LineageName(lineage), step)


def test_rate_is_that_of_the_last_publishes_and_falls_while_the_learner_is_idle() -> None:
    rate = PublishRate()
    assert rate.per_s(now_s=1.0) == 0.0
    for step in range(100):
        rate = rate.publish(version(step), now_s=10.0 + 0.5 * step)
    assert len(rate.seen) == RATE_WINDOW
    assert rate.per_s(now_s=59.5) == pytest.approx(2.0)
    assert rate.per_s(now_s=59.5 + 7.5) == pytest.approx(1.0)


def test_versions_that_were_skipped_count_and_old_ones_do_not() -> None:
    rate = PublishRate().publish(version(3), now_s=0.0).publish(version(9), now_s=2.0)
    assert rate.per_s(now_s=2.0) == pytest.approx(3.0)
    assert rate.publish(version(9), now_s=3.0) == rate.publish(version(4), now_s=3.0) == rate
    assert rate.publish(version(4, "1-b"), now_s=3.0).per_s(now_s=4.0) == 0.0


# -- caps and groups ---------------------------------------------------------------------------------------------------


def test_cap_is_the_quantile_of_what_was_seen_and_never_above_what_was_asked_for() -> None:
    curve = curve_of(Exponential(100.0))
    assert capped_length(curve, quantile=0.95, length_max=10_000) == pytest.approx(
        100 * math.log(20), rel=0.02
    )
    assert capped_length(curve, quantile=0.95, length_max=64) == 64
    assert capped_length(UNKNOWN, quantile=0.95, length_max=64) == 64
    plain = capped_length(curve, quantile=0.95, length_max=10_000)
    assert capped_length(curve, quantile=0.95, length_max=10_000, cache_share=0.2) == pytest.approx(
        plain / 0.8, abs=2
    )


def test_cap_that_too_many_reach_is_lifted() -> None:
    counts = LengthCounts(half_life=1e9)
    for index in range(1000):
        length = 100.0 * (index + 0.5) / 1000
        counts.observe(min(length, 60.0), ended=length <= 60.0)
    assert capped_length(counts.curve(), quantile=0.95, length_max=512) == 512


def test_golden_overlong_penalty_of_dapo() -> None:
    """L_max 20480 and L_cache 4096, as in the paper's section 4.1."""
    golden = {0: 0.0, 16_384: 0.0, 17_408: -0.25, 18_432: -0.5, 20_480: -1.0, 30_000: -1.0}
    for length, penalty in golden.items():
        assert overlong_penalty(length, length_max=20_480, cache_share=0.2) == pytest.approx(penalty)


@given(st.integers(0, 200), st.integers(1, 100), st.floats(0.0, 1.0))
def test_overlong_penalty_falls_from_nothing_to_one(length: int, length_max: int, cache_share: float) -> None:
    penalty = overlong_penalty(length, length_max=length_max, cache_share=cache_share)
    longer = overlong_penalty(length + 1, length_max=length_max, cache_share=cache_share)
    assert -1.0 <= longer <= penalty <= 0.0
    assert overlong_penalty(length_max + 1, length_max=length_max, cache_share=cache_share) == -1.0


def test_penalty_is_a_component_of_the_reward_and_goes_by_the_cap_of_the_record() -> None:
    record = Trajectory(
        trajectory_id=TrajectoryId("t-1.0"),
        run_id=RunId("run"),
        task_id=TaskId("t-1"),
        group_id=GroupId("t-1"),
        group_size=1,
        spans=(),
        tensors={},
        num_steps=95,
        reward=1.0,
        reward_components={"exact": 1.0},
        sampler=Sampler(max_new_tokens=100),
        length_tokens=95,
    )
    rule = OverlongRule(cache_share=0.2, weight=0.5, length_max=400)
    judged = rule.applied(record)
    assert judged.reward == pytest.approx(1.0 - 0.5 * 0.75)
    assert judged.reward_components == {"exact": 1.0, "overlong": pytest.approx(-0.375)}
    short = rule.applied(msgspec.structs.replace(record, length_tokens=80))
    assert (short.reward, str(short.reward_components["overlong"])) == (1.0, "0.0")
    wider = rule.applied(msgspec.structs.replace(record, sampler=Sampler(max_new_tokens=200)))
    assert wider.reward == 1.0
    uncapped = OverlongRule(cache_share=0.2, weight=0.5, length_max=100).applied(record)
    assert (uncapped.reward, uncapped.reward_components["overlong"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("rewards", "samples_min", "stops"),
    [
        ([], 0, False),
        ([0.0, 0.0], 3, False),
        ([0.0, 0.0, 0.0], 3, True),
        ([1.0, 1.0, 1.0, 1.0], 3, True),
        ([0.0, 0.0, 0.1], 3, False),
        ([1.0], 1, True),
    ],
)
def test_group_whose_first_samples_are_rewarded_alike_stops_early(
    rewards: list[float], samples_min: int, stops: bool
) -> None:
    assert may_stop_early(rewards, samples_min=samples_min) is stops
