import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.slo import (
    ALERT_BAD_MIN,
    BUCKETS,
    BURN_FACTOR,
    BURN_MAX,
    LONG_BUCKETS,
    ROUNDING,
    SHORT_BUCKETS,
    Slo,
    SloState,
    Verdict,
    count,
    coverage,
    headline,
    observe,
    update_condition,
    verdict,
)

LAG = Slo("lag_p95", bound=4.0, target=0.9, window_s=1440.0)
"""Buckets of 10 s; 144 s of the window may be bad."""

# Seconds since the previous sample, and its value. Sums and differences of these times are exact: a bucket is chosen by
# the difference of two, and rounding at its edge would choose another than the twin's.
TimedValue = tuple[float, float | None]
timed_values = st.lists(
    st.tuples(
        st.one_of(
            st.sampled_from([0.0, 1.0, 10.0, 100.0]), st.integers(0, 3000 << 10).map(lambda n: n / 1024)
        ),
        st.one_of(st.none(), st.sampled_from([1.0, 9.0]), st.floats(allow_nan=True, allow_infinity=True)),
    ),
    max_size=60,
)


def after(taken: Sequence[TimedValue], slo: Slo = LAG) -> tuple[SloState, float]:
    state, now_s = SloState(), 0.0
    for elapsed_s, value in taken:
        now_s += elapsed_s
        state = observe(slo, state, value, at_s=now_s)
    return state, now_s


def steadily(value: float | None, *, seconds: int, state: SloState, since_s: float = 0.0) -> SloState:
    for second in range(seconds):
        state = observe(LAG, state, value, at_s=since_s + second)
    return state


def slow_twin(taken: Sequence[TimedValue], slo: Slo) -> Verdict:
    """Keeps every sample with its bucket; windows are filters over the list."""
    now_s = 0.0
    kept: list[tuple[int, str]] = []
    value_last = None
    for number_of_sample, (elapsed_s, value) in enumerate(taken):
        # An objective's clock starts with its first sample.
        now_s += min(elapsed_s, slo.window_s + slo.bucket_s) if number_of_sample else 0.0
        if value is None or math.isnan(value):
            kept.append((int(now_s // slo.bucket_s), "missing"))
            continue
        value_last = value
        kept.append((int(now_s // slo.bucket_s), "good" if value <= slo.bound else "bad"))
    newest = int(now_s // slo.bucket_s)

    def number(kind: str, buckets: int) -> float:
        return float(sum(1 for index, each in kept if each == kind and index > newest - buckets))

    def burn(buckets: int) -> float:
        bad = number("bad", buckets)
        if not bad:
            return 0.0
        total = number("good", buckets) + bad
        first = min(index for index, each in kept if each != "missing" and index > newest - BUCKETS)
        scaled = total * buckets / min(buckets, newest - first + 1)
        return min(BURN_MAX, bad / ((1.0 - slo.target) * scaled))

    good, bad = number("good", BUCKETS), number("bad", BUCKETS)
    left = 1.0 - burn(BUCKETS)
    alert = min(burn(LONG_BUCKETS), burn(SHORT_BUCKETS)) >= BURN_FACTOR
    alert = alert and number("bad", LONG_BUCKETS) >= ALERT_BAD_MIN
    return Verdict(
        slo=slo,
        condition="no_data"
        if not good + bad
        else "breached"
        if left < -ROUNDING
        else "burning"
        if alert
        else "ok",
        value=value_last,
        good=good,
        bad=bad,
        missing=number("missing", BUCKETS),
        budget_left=left,
        burn_long=burn(LONG_BUCKETS),
        burn_short=burn(SHORT_BUCKETS),
    )


@given(taken=timed_values)
def test_ring_gives_what_keeping_every_observation_would_give(taken: list[TimedValue]) -> None:
    state, now_s = after(taken)
    fast, slow = verdict(LAG, state, now_s=now_s), slow_twin(taken, LAG)
    assert fast.condition == slow.condition
    for name in ("good", "bad", "missing"):
        assert getattr(fast, name) == getattr(slow, name)
    for name in ("budget_left", "burn_long", "burn_short"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name))


@given(taken=timed_values)
def test_state_is_bounded_and_survives_the_file(taken: list[TimedValue]) -> None:
    state, now_s = after(taken)
    assert len(state.buckets) <= BUCKETS
    state = msgspec.structs.replace(state, value=None)  # JSON has no infinity
    again = msgspec.json.decode(msgspec.json.encode(state), type=SloState)
    assert verdict(LAG, again, now_s=now_s) == verdict(LAG, state, now_s=now_s)


@given(taken=timed_values, now_s=st.floats(allow_nan=True, allow_infinity=True))
def test_verdict_is_in_its_ranges_for_any_clock(taken: list[TimedValue], now_s: float) -> None:
    state, _ = after(taken)
    found = verdict(LAG, state, now_s=now_s)
    assert -BURN_MAX <= found.budget_left <= 1.0
    assert 0.0 <= found.burn_long <= BURN_MAX
    assert 0.0 <= found.burn_short <= BURN_MAX
    assert (found.condition == "no_data") == (found.good + found.bad == 0)
    assert math.isfinite(found.budget_left)


@given(taken=timed_values, back_s=st.floats(0.0, 1e9))
def test_clock_that_steps_back_costs_and_adds_nothing(taken: list[TimedValue], back_s: float) -> None:
    state, now_s = after(taken)
    before = verdict(LAG, state, now_s=now_s)
    stepped = observe(LAG, state, 1.0, at_s=now_s - back_s)
    found = verdict(LAG, stepped, now_s=now_s - back_s)
    assert (found.good, found.bad, found.missing) == (before.good + 1, before.bad, before.missing)
    # Afterwards it counts as before.
    later = verdict(LAG, stepped, now_s=now_s - back_s + 3.0 * LAG.window_s)
    assert later.condition == "no_data"


def test_clock_that_steps_forward_empties_the_window_and_no_more() -> None:
    state = steadily(9.0, seconds=500, state=SloState())
    assert verdict(LAG, state, now_s=500.0).condition == "breached"
    jumped = observe(LAG, state, 1.0, at_s=1e12)
    found = verdict(LAG, jumped, now_s=1e12)
    assert (found.condition, found.good, found.bad) == ("ok", 1.0, 0.0)
    back = steadily(9.0, seconds=500, state=jumped, since_s=500.0)
    assert verdict(LAG, back, now_s=1000.0).condition == "breached"


def test_untouched_budget_is_one_and_the_whole_budget_spent_is_nothing() -> None:
    assert verdict(LAG, steadily(1.0, seconds=1440, state=SloState()), now_s=1439.0).budget_left == 1.0
    # 10 % of the window is exactly what may be bad; one in ten, evenly.
    state = SloState()
    for second in range(1440):
        state = observe(LAG, state, 9.0 if second % 10 == 0 else 1.0, at_s=float(second))
    found = verdict(LAG, state, now_s=1439.0)
    assert found.budget_left == pytest.approx(0.0)
    assert found.burn_long == pytest.approx(1.0)
    assert found.condition == "ok"


def test_first_bad_second_of_a_run_is_no_breach_and_a_bad_quarter_of_the_budget_burns() -> None:
    state = steadily(9.0, seconds=1, state=SloState())
    assert verdict(LAG, state, now_s=0.0).condition == "ok"
    since_s = next(
        second
        for second in range(1440)
        if verdict(LAG, steadily(9.0, seconds=second, state=SloState()), now_s=float(second)).condition
        == "burning"
    )
    # A quarter of the 144 s that may be bad, to the width of a bucket.
    assert since_s == pytest.approx(36.0, abs=LAG.bucket_s)


def test_alert_fires_when_both_windows_burn_and_ends_soon_after_the_trouble() -> None:
    state = steadily(1.0, seconds=1000, state=SloState())
    state, change = update_condition(LAG, state, now_s=999.0, cause="unknown", wall_s=0.0)
    assert change is not None
    assert (change.before, change.after, change.kind) == ("no_data", "ok", "data")
    state = steadily(9.0, seconds=60, state=state, since_s=1000.0)
    state, change = update_condition(LAG, state, now_s=1060.0, cause="learner", wall_s=7.0)
    assert change is not None
    assert (change.kind, change.after, change.cause, change.value) == ("breach", "burning", "learner", 9.0)
    state = steadily(1.0, seconds=30, state=state, since_s=1060.0)
    state, change = update_condition(LAG, state, now_s=1090.0, cause="balanced", wall_s=8.0)
    assert change is not None
    assert (change.kind, change.after) == ("recovery", "ok")
    assert state.last_breach is not None
    assert (state.last_breach.at_s, state.last_breach.cause) == (7.0, "learner")


def test_same_condition_twice_is_no_event() -> None:
    state = steadily(9.0, seconds=60, state=SloState())
    state, first = update_condition(LAG, state, now_s=60.0, cause="learner", wall_s=1.0)
    again, second = update_condition(LAG, state, now_s=60.0, cause="actor", wall_s=2.0)
    assert first is not None
    assert second is None
    assert again == state


def test_burning_that_becomes_a_breach_keeps_its_first_cause() -> None:
    state = steadily(9.0, seconds=60, state=SloState())
    state, _ = update_condition(LAG, state, now_s=60.0, cause="learner", wall_s=1.0)
    state = steadily(9.0, seconds=200, state=state, since_s=60.0)
    state, change = update_condition(LAG, state, now_s=260.0, cause="actor", wall_s=2.0)
    assert change is not None
    assert (change.before, change.after) == ("burning", "breached")
    assert state.last_breach is not None
    assert (state.last_breach.at_s, state.last_breach.cause) == (1.0, "learner")


def test_few_bad_observations_where_little_happens_are_no_alert() -> None:
    state = SloState()
    for minute in range(24):
        state = observe(LAG, state, 1.0, at_s=60.0 * minute)
    state = observe(LAG, state, 9.0, at_s=1440.0)
    found = verdict(LAG, state, now_s=1440.0)
    assert found.burn_long >= BURN_FACTOR
    assert found.condition == "ok"


def test_missing_samples_are_counted_and_change_neither_budget_nor_burn() -> None:
    state = steadily(9.0, seconds=20, state=SloState())
    before = verdict(LAG, state, now_s=19.0)
    for value in (None, math.nan):
        state = observe(LAG, state, value, at_s=19.0)
    found = verdict(LAG, state, now_s=19.0)
    assert found.missing == before.missing + 2
    assert msgspec.structs.replace(found, missing=0.0) == msgspec.structs.replace(before, missing=0.0)


def test_objective_without_recent_observations_has_no_data() -> None:
    state = steadily(1.0, seconds=100, state=SloState())
    state, _ = update_condition(LAG, state, now_s=99.0, cause="", wall_s=0.0)
    state = steadily(None, seconds=1500, state=state, since_s=100.0)
    _, change = update_condition(LAG, state, now_s=1600.0, cause="learner", wall_s=1.0)
    assert change is not None
    assert (change.kind, change.before, change.after) == ("no_data", "ok", "no_data")


def test_first_bad_observation_after_a_pause_is_no_breach() -> None:
    state = steadily(1.0, seconds=100, state=SloState())
    state = steadily(None, seconds=1500, state=state, since_s=100.0)
    state = observe(LAG, state, 9.0, at_s=1600.0)
    assert verdict(LAG, state, now_s=1600.0).condition == "ok"


def test_objective_without_a_budget_is_breached_by_one_bad_observation_until_it_leaves_the_window() -> None:
    hard = Slo("lag_max", bound=8.0, target=1.0, window_s=1440.0)
    state = count(hard, SloState(), good=1e6, bad=0.0, value=8.0, at_s=0.0)
    assert verdict(hard, state, now_s=0.0).condition == "ok"
    state = count(hard, state, good=1e6, bad=1.0, value=9.0, at_s=1.0)
    found = verdict(hard, state, now_s=1.0)
    assert (found.condition, found.budget_left) == ("breached", 1.0 - BURN_MAX)
    assert verdict(hard, state, now_s=1000.0).condition == "breached"
    assert verdict(hard, state, now_s=1450.0).condition == "no_data"


def test_counts_of_others_weigh_as_many_observations() -> None:
    counted = count(LAG, SloState(), good=95.0, bad=5.0, value=4.0, at_s=0.0)
    found = verdict(LAG, counted, now_s=0.0)
    assert (found.good, found.bad, found.value) == (95.0, 5.0, 4.0)
    nothing = count(LAG, counted, good=0.0, bad=0.0, value=None, at_s=0.0)
    assert verdict(LAG, nothing, now_s=0.0).missing == 1.0


def test_direction_defines_the_good_side_of_the_bound() -> None:
    at_least = Slo("ess", bound=0.2, target=0.9, window_s=600.0, direction="at_least")
    assert at_least.holds(0.2)
    assert not at_least.holds(0.19)
    assert LAG.holds(4.0)
    assert not LAG.holds(4.1)


def test_headline_counts_conditions_and_names_burning_and_breached_objectives() -> None:
    fine = verdict(LAG, steadily(1.0, seconds=9, state=SloState()), now_s=9.0)
    burning = verdict(LAG, steadily(9.0, seconds=60, state=SloState()), now_s=60.0)
    unseen = verdict(LAG, SloState(), now_s=0.0)
    assert headline([fine, burning, fine, unseen]) == "2 ok, 1 burning (lag_p95), 1 no data"
    assert headline([]) == "none declared"


def test_coverage_is_the_part_of_the_window_since_the_oldest_observation() -> None:
    slo = Slo("lag_p95", bound=4, target=0.95, window_s=BUCKETS * 1.0)
    state = SloState()
    assert coverage(slo, state, now_s=0.0) == 0.0
    state = observe(slo, state, 1.0, at_s=0.0)
    assert coverage(slo, state, now_s=BUCKETS / 2 - 1) == 0.5
    assert coverage(slo, state, now_s=BUCKETS - 1) == 1.0


def test_burn_over_the_window_is_the_error_ratio_by_the_budget_times_the_coverage() -> None:
    """PromQL computes the same burn rate from the counters and the coverage."""
    slo = Slo("lag_p95", bound=4, target=0.95, window_s=BUCKETS * 1.0)
    state = SloState()
    for second in range(60):
        state = observe(slo, state, 9.0 if second % 10 == 0 else 1.0, at_s=float(second))
    found = verdict(slo, state, now_s=59.0)
    ratio = found.bad / (found.good + found.bad)
    burned = ratio / (1.0 - slo.target) * coverage(slo, state, now_s=59.0)
    assert found.budget_left == pytest.approx(1.0 - burned)
