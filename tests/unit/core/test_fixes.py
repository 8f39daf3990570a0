"""The best fix for a window of a run, its price, and the reasons against the others."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.test_balance import HEALTHY, window
from tidegate.core.balance import Lever
from tidegate.core.fixes import LEVERS, Advice, advise
from tidegate.core.prices import Prices

PRICES = Prices(actor_usd_per_h=0.50, environment_usd_per_h=0.25, learner_usd_per_h=3.00)


def advice(**changes: float | str) -> Advice:
    return advise(window(**changes), prices=PRICES)


def lever_of(found: Advice) -> Lever | None:
    return found.best.lever if found.best else None


def test_price_of_a_million_is_the_platform_cost_over_the_training_rate() -> None:
    """Two actors, one worker, one learner: $4.25 an hour for 40 trajectories a second."""
    found = advise(HEALTHY, prices=PRICES)
    assert found.usd_per_h == 4.25
    assert found.usd_per_million == pytest.approx(4.25 / (40 * 3600) * 1e6)


def test_additional_actor_for_half_a_dollar_is_worth_it() -> None:
    found = advice(learner_idle_ratio=0.5, available=0.5)
    assert found.best is not None
    assert (found.best.lever, found.best.gain, found.best.added_usd_per_h) == (
        "actor",
        pytest.approx(0.5),
        0.50,
    )
    assert found.best.samples_per_s == pytest.approx(60.0)
    assert found.best.usd_per_million == pytest.approx(4.75 / (60 * 3600) * 1e6)
    assert "+50% throughput at $21.99 per million samples instead of $29.51 (-25%)" in found.sentence
    assert found.why_not["learner"] == "it waits 50% of its time already; a faster one would wait longer"
    assert "holds none of them back" in found.why_not["max_lag"]


def test_idle_actors_before_a_busy_learner_are_released_where_that_is_cheaper() -> None:
    """Eight actors idle eight tenths: two do the work. A second learner gains 92 % and costs a quarter more."""
    found = advice(num_actors=8, actor_wait_task_ratio=0.8)
    assert lever_of(found) == "fewer_actors"
    assert found.best is not None
    assert (found.best.gain, found.best.added_usd_per_h) == (0.0, -3.0)
    assert [fix.lever for fix in found.others] == ["learner"]
    assert found.others[0].gain == pytest.approx(0.92)
    assert "the same throughput" in found.sentence


def test_of_equal_costs_the_fix_with_the_larger_gain_wins() -> None:
    """$36.46 a million with four actors less, $37.07 with a second learner and 92 % more samples."""
    found = advice(num_actors=8, actor_wait_task_ratio=0.6)
    assert lever_of(found) == "learner"
    assert found.others[0].usd_per_million == pytest.approx(36.46, abs=0.01)


@pytest.mark.parametrize(("replicas", "gain"), [(1, 0.92), (2, 0.4375), (13, 0.0)])
def test_each_learner_replica_more_brings_less_and_costs_the_same(replicas: int, gain: float) -> None:
    found = advise(
        window(num_learners=replicas, num_actors=64, actor_wait_task_ratio=0.8),
        prices=Prices(actor_usd_per_h=2.0, learner_usd_per_h=0.01),
    )
    gains = {fix.lever: fix.gain for fix in (found.best, *found.others) if fix is not None}
    assert gains.get("learner", 0.0) == pytest.approx(gain)


def test_learner_is_bought_where_it_is_cheap() -> None:
    cheap = Prices(actor_usd_per_h=2.0, learner_usd_per_h=0.5)
    found = advise(window(num_actors=8, actor_wait_task_ratio=0.45), prices=cheap)
    assert lever_of(found) == "learner"
    assert [fix.lever for fix in found.others] == ["fewer_actors"]


@pytest.mark.parametrize(
    ("changes", "lever", "gain"),
    [
        ({"learner_idle_ratio": 0.4, "unscored": 30.0, "environment_busy_ratio": 1.0}, "environment", 2 / 3),
        ({"learner_idle_ratio": 0.3, "unstored": 30.0}, "store", 3 / 7),
        ({"learner_idle_ratio": 0.3, "actor_wait_policy_ratio": 0.35}, "max_lag", 3 / 7),
        ({"learner_publish_ratio": 0.4, "learner_busy_ratio": 0.55}, "weights", 2 / 3),
        ({"max_lag": 0, "learner_idle_ratio": 0.5, "actor_wait_task_ratio": 0.5}, "max_lag", 1.0),
        ({"learner_idle_ratio": 0.5, "actor_wait_task_ratio": 0.5, "running": 64.0}, "max_running", 1.0),
    ],
)
def test_fix_addresses_the_bottleneck(changes: dict[str, float], lever: Lever, gain: float) -> None:
    found = advice(**changes)
    assert found.best is not None
    assert (found.best.lever, found.best.gain) == (lever, pytest.approx(gain))


def test_free_overlap_comes_before_machines_and_they_are_named_with_their_price() -> None:
    found = advice(max_lag=0, learner_idle_ratio=0.5, actor_wait_task_ratio=0.5)
    assert [fix.lever for fix in found.others] == ["actor", "learner"]
    assert found.best is not None
    assert found.best.usd_per_million == pytest.approx(found.usd_per_million / 2)


def test_balanced_loop_needs_no_fix_and_gives_a_reason_for_each_lever() -> None:
    found = advise(HEALTHY, prices=PRICES)
    assert found.best is None
    assert found.sentence.startswith("Nothing to fix")
    assert set(found.why_not) == {*LEVERS} - {"inference"}
    assert found.why_not["actor"].startswith("the learner waits 5% of its time")


def test_balanced_loop_with_an_inference_service_gives_a_reason_for_it_too() -> None:
    found = advise(msgspec.structs.replace(HEALTHY, num_inferences=1), prices=PRICES)
    assert set(found.why_not) == {*LEVERS}


def test_fix_of_a_missing_service_is_to_start_it() -> None:
    found = advice(num_actors=0)
    assert (found.best, found.why_not) == (None, {})
    assert found.sentence.startswith("Start an actor")


def test_loop_that_trains_nothing_has_no_price_a_million_and_encodes_all_the_same() -> None:
    found = advice(learner_samples_per_s=0.0, learner_idle_ratio=0.9)
    assert found.best is None
    assert msgspec.json.decode(msgspec.json.encode(found))["usd_per_million"] is None


SHARE = st.floats(0.0, 1.0)


@given(
    idle=SHARE, busy=SHARE, wait_task=SHARE, wait_policy=SHARE, publish=SHARE, blocked=SHARE,
    unscored=st.floats(0, 50), unstored=st.floats(0, 50), available=st.floats(0, 50), actors=st.integers(1, 64),
    rate=st.floats(0.1, 1e4), running=st.floats(0, 64), inferences=st.integers(0, 1), acting=SHARE, inferring=SHARE,
    requests=st.floats(0, 64),
)  # fmt: skip
def test_no_fix_lowers_throughput_and_each_lever_is_either_priced_or_refused(
    idle: float, busy: float, wait_task: float, wait_policy: float, publish: float, blocked: float, unscored: float,
    unstored: float, available: float, actors: int, rate: float, running: float, inferences: int, acting: float,
    inferring: float, requests: float,
) -> None:  # fmt: skip
    found = advise(
        window(
            learner_idle_ratio=idle, learner_busy_ratio=busy, actor_wait_task_ratio=wait_task,
            actor_wait_policy_ratio=wait_policy, learner_publish_ratio=publish, actor_wait_publish_ratio=blocked,
            unscored=unscored, unstored=unstored, available=available, num_actors=actors, learner_samples_per_s=rate,
            running=running, num_inferences=inferences, actor_wait_inference_ratio=acting,
            inference_busy_ratio=inferring, inference_waiting=requests,
        ),
        prices=PRICES,
    )  # fmt: skip
    fixes = [found.best, *found.others] if found.best else []
    assert all(fix.gain >= 0.0 and fix.usd_per_million > 0.0 for fix in fixes)
    costs = [fix.usd_per_million for fix in fixes]
    assert costs[1:] == sorted(costs[1:])
    assert all(costs[0] <= 1.05 * cost for cost in costs[1:])
    named = [fix.lever for fix in fixes] + list(found.why_not)
    if found.bottleneck == "inference" and not fixes:
        # It does not report, or waits for steps to fill its calls: nothing to buy helps.
        assert named == []
    else:
        assert sorted(named) == sorted(lever for lever in LEVERS if inferences or lever != "inference")
    assert all(found.why_not.values())
