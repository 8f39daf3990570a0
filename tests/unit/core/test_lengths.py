"""Predicted remaining lengths: against closed forms, a slow reference, and censored lengths."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.distributions import Distribution, Exponential, Lognormal
from tidegate.core.lengths import (
    AT_RISK_MIN,
    NUM_BINS_MAX,
    OTHER_BIN,
    UNKNOWN,
    LengthCounts,
    LengthPredictor,
    SurvivalCurve,
    length_bucket,
)

FOREVER = 1e9


def curve_of(distribution: Distribution, *, num: int = 20_000) -> SurvivalCurve:
    """The curve of lengths at even quantiles of a distribution."""
    counts = LengthCounts(half_life=FOREVER)
    for index in range(num):
        counts.observe(distribution.quantile((index + 0.5) / num), ended=True)
    return counts.curve()


def value(answer: float | None) -> float:
    assert answer is not None
    return answer


@pytest.mark.parametrize("length", [0.0, 5.0, 40.0, 100.0, 160.0])
def test_memoryless_rollouts_have_as_much_to_come_however_long_they_are(length: float) -> None:
    curve = curve_of(Exponential(40.0))
    assert value(curve.mean_remaining(length)) == pytest.approx(40.0, rel=0.03)
    assert value(curve.remaining_quantile(length, share=0.5)) == pytest.approx(40.0 * math.log(2), rel=0.04)
    chance = value(curve.finish_chance(length, within=40.0))
    assert chance == pytest.approx(1.0 - math.exp(-1.0), rel=0.03)


def test_heavy_tailed_rollouts_have_the_more_to_come_the_longer_they_are() -> None:
    heavy = Lognormal(10.0, 1.0)
    curve = curve_of(heavy)
    remaining = [value(curve.mean_remaining(length)) for length in (5.0, 10.0, 20.0, 40.0)]
    assert remaining == sorted(remaining)
    for length in (5.0, 10.0, 20.0, 40.0):
        truth = 1.0 - heavy.survival(length + 10.0) / heavy.survival(length)
        assert value(curve.finish_chance(length, within=10.0)) == pytest.approx(truth, abs=0.01)


def test_golden_median_and_p95_of_a_lognormal() -> None:
    curve = curve_of(Lognormal(1.0, 1.0))
    assert value(curve.remaining_quantile(0.0, share=0.5)) == pytest.approx(0.7071, rel=0.01)
    assert value(curve.remaining_quantile(0.0, share=0.95)) == pytest.approx(2.7812, rel=0.02)


def kaplan_meier(lengths: list[tuple[float, bool]], at: float) -> float:
    """The slow twin, without buckets: one factor for each end up to ``at``."""
    share = 1.0
    for length, ended in lengths:
        if ended and length <= at:
            at_risk = sum(other >= length for other, _ in lengths)
            share *= 1.0 - 1.0 / at_risk
    return share


@pytest.mark.parametrize("seed", range(5))
def test_cut_rollouts_are_learned_from_like_the_slow_twin_does(seed: int) -> None:
    rng = random.Random(seed)
    lengths: list[tuple[float, bool]] = []
    for _ in range(600):
        length, cut_at = rng.expovariate(1 / 30), rng.expovariate(1 / 60)
        lengths.append((min(length, cut_at), length <= cut_at))
    counts = LengthCounts(half_life=FOREVER)
    for length, ended in lengths:
        counts.observe(length, ended=ended)
    curve = counts.curve()
    for at in (5.0, 10.0, 20.0, 40.0, 60.0):
        # A bucket is 19 % wide, so the hazard may be off by that much.
        assert curve.survival(at) == pytest.approx(kaplan_meier(lengths, at), abs=0.02)


def test_cutting_long_rollouts_does_not_teach_that_there_are_none() -> None:
    counts = LengthCounts(half_life=FOREVER)
    truth = Exponential(40.0)
    for index in range(5000):
        length = truth.quantile((index + 0.5) / 5000)
        counts.observe(min(length, 60.0), ended=length <= 60.0)
    curve = counts.curve()
    assert curve.survival(50.0) == pytest.approx(math.exp(-50 / 40), abs=0.01)
    assert curve.finish_chance(30.0, within=1000.0) == 1.0, "lengths beyond the horizon count as an end"
    assert curve.remaining_quantile(0.0, share=0.95) is None


@given(
    st.lists(st.tuples(st.floats(0.0, 1e7), st.booleans()), min_size=1, max_size=60),
    st.floats(0.0, 1e7),
    st.floats(0.0, 1e7),
)
def test_curve_only_falls_and_its_answers_are_chances(
    lengths: list[tuple[float, bool]], length: float, within: float
) -> None:
    counts = LengthCounts(half_life=50.0)
    for observed, ended in lengths:
        counts.observe(observed, ended=ended)
    curve = counts.curve()
    assert list(curve.shares) == sorted(curve.shares, reverse=True)
    assert curve.survival(length + within) <= curve.survival(length) + 1e-12
    chance = curve.finish_chance(length, within=within)
    assert chance is None or -1e-12 <= chance <= 1.0
    for share in (0.1, 0.5, 0.9):
        more = curve.remaining_quantile(length, share=share)
        if more is not None:
            assert more >= 0.0
            assert value(curve.finish_chance(length, within=more)) >= share - 1e-6


def test_too_few_lengths_give_no_estimate() -> None:
    counts = LengthCounts(half_life=FOREVER)
    for _ in range(int(AT_RISK_MIN)):
        counts.observe(3.0, ended=True)
    asks: list[Callable[[SurvivalCurve], float | None]] = [
        lambda curve: curve.mean_remaining(0.0),
        lambda curve: curve.finish_chance(0.0, within=1.0),
        lambda curve: curve.remaining_quantile(0.0, share=0.5),
    ]
    assert [ask(counts.curve()) for ask in asks] == [ask(UNKNOWN) for ask in asks] == [None] * 3
    counts.observe(3.0, ended=True)
    assert all(ask(counts.curve()) is not None for ask in asks)
    assert counts.curve().mean_remaining(100.0) is None


def test_old_lengths_are_forgotten() -> None:
    predictor = LengthPredictor(half_life=50.0)
    for _ in range(1000):
        predictor.observe("a", 10.0)
    for _ in range(200):
        predictor.observe("a", 100.0)
    # Four half-lives: 15/16 of what counts is new.
    assert predictor.curve("a").survival(50.0) == pytest.approx(15 / 16, abs=0.01)


def test_weights_never_overflow() -> None:
    counts = LengthCounts(half_life=1.0)
    for _ in range(5000):
        counts.observe(1.0, ended=True)
    assert counts.effective_count == pytest.approx(1.0, abs=0.01)


def test_bins_are_separate_and_an_unseen_one_uses_all_bins() -> None:
    predictor = LengthPredictor(half_life=FOREVER)
    for _ in range(100):
        predictor.observe("easy", 10.0)
        predictor.observe("hard", 1000.0)
    assert value(predictor.curve("easy").mean_remaining(0.0)) == pytest.approx(10.0, rel=0.2)
    assert value(predictor.curve("hard").mean_remaining(0.0)) == pytest.approx(1000.0, rel=0.2)
    assert predictor.curve("new").survival(100.0) == pytest.approx(0.5)
    assert LengthPredictor(half_life=1.0).curve("new") == UNKNOWN


def test_number_of_bins_is_bounded_and_the_rest_share_one() -> None:
    predictor = LengthPredictor(half_life=FOREVER)
    for number in range(NUM_BINS_MAX):
        predictor.observe(f"bin-{number}", 10.0)
    for number in range(1000):
        predictor.observe(f"later-{number}", 1000.0)
    assert predictor.curve("later-3") == predictor.curve(OTHER_BIN)
    assert predictor.curve("later-3").survival(500.0) == 1.0


@pytest.mark.parametrize("length", [-1.0, math.nan, math.inf])
def test_invalid_length_changes_nothing(length: float) -> None:
    predictor = LengthPredictor(half_life=1.0)
    predictor.observe("a", length)
    assert predictor.curve("a") == UNKNOWN


@pytest.mark.parametrize(
    ("length", "name"),
    [
        (-3, "0"),
        (0, "0"),
        (1, "1"),
        (2, "2-3"),
        (3, "2-3"),
        (64, "64-127"),
        (127, "64-127"),
        (524_287, "262144-524287"),
        (524_288, "524288+"),
        (10**12, "524288+"),
    ],
)
def test_lengths_are_counted_by_octave(length: int, name: str) -> None:
    assert length_bucket(length) == name
