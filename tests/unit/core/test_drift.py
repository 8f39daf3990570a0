import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.drift import (
    SAMPLES_MAX,
    SAMPLES_MIN,
    Mix,
    MixWindow,
    chance,
    drift,
    jensen_shannon,
    most_lost,
    sampling_bias,
)
from tidegate.core.slo_catalogue import SlosConfig, declared

histograms = st.dictionaries(
    st.sampled_from("abcdef"), st.floats(0.0, 1e6).filter(lambda x: x == 0 or x > 1e-3)
)


def entropy_bits(histogram: dict[str, float]) -> float:
    total = sum(histogram.values())
    return -sum(each / total * math.log2(each / total) for each in histogram.values() if each)


@given(left=histograms, right=histograms)
def test_divergence_is_the_entropy_of_the_middle_less_the_mean_entropy(
    left: dict[str, float], right: dict[str, float]
) -> None:
    """The definition of Lin (1991), written the other way round."""
    found = jensen_shannon(left, right)
    total_left, total_right = sum(left.values()), sum(right.values())
    if not total_left or not total_right:
        assert found == 0.0
        return
    middle = {
        name: left.get(name, 0.0) / total_left / 2 + right.get(name, 0.0) / total_right / 2
        for name in {*left, *right}
    }
    expected = entropy_bits(middle) - (entropy_bits(left) + entropy_bits(right)) / 2
    assert found == pytest.approx(expected, abs=1e-9)


@given(left=histograms, right=histograms, scale=st.floats(0.01, 100.0))
def test_divergence_is_symmetric_between_0_and_1_and_knows_no_scale(
    left: dict[str, float], right: dict[str, float], scale: float
) -> None:
    found = jensen_shannon(left, right)
    assert 0.0 <= found <= 1.0
    assert found == pytest.approx(jensen_shannon(right, left), abs=1e-12)
    scaled = {name: scale * number for name, number in left.items()}
    assert found == pytest.approx(jensen_shannon(scaled, right), abs=1e-9)
    assert jensen_shannon(left, left) == pytest.approx(0.0, abs=1e-12)


def test_divergence_of_mixes_without_a_common_bin_is_one_bit() -> None:
    assert jensen_shannon({"easy": 3.0}, {"hard": 5.0}) == 1.0
    # (1, 0) against (1/2, 1/2): H(3/4, 1/4) - 1/2
    assert jensen_shannon({"easy": 1.0}, {"easy": 1.0, "hard": 1.0}) == pytest.approx(0.311278, abs=1e-6)


@given(trained=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 500).map(float), min_size=1))
def test_nothing_dropped_is_no_drift(trained: dict[str, float]) -> None:
    found = drift(Mix(decided=trained, trained=trained))
    assert found in (None, pytest.approx(0.0, abs=1e-12))


def test_too_few_samples_give_no_verdict() -> None:
    few = {"easy": SAMPLES_MIN - 1.0}
    assert drift(Mix(decided={"easy": 500.0, "hard": 500.0}, trained=few)) is None
    assert drift(Mix(decided={}, trained={})) is None
    many_bins = {str(number): 1.0 for number in range(SAMPLES_MIN)}
    assert drift(Mix(decided=many_bins, trained=many_bins)) is None


def test_bin_whose_work_is_dropped_shows() -> None:
    decided = {"easy": 500.0, "hard": 500.0}
    found = drift(Mix(decided=decided, trained={"easy": 500.0, "hard": 50.0}))
    assert found is not None
    assert found > 0.1
    assert most_lost(Mix(decided=decided, trained={"easy": 500.0, "hard": 50.0})) == (
        "hard: 50% of what was decided, 9% of what was trained"
    )
    assert most_lost(Mix(decided=decided, trained=decided)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("num_bins", "num_decided", "kept"), [(2, 400, 0.5), (8, 400, 0.5), (32, 1600, 0.3)])
def test_drops_that_hit_all_bins_alike_diverge_by_the_bias_and_by_nothing_after_it(
    num_bins: int, num_decided: int, kept: float
) -> None:
    """400 draws: the plug-in estimate is off by the stated bias, and without it none comes near a breach."""
    rng = random.Random(num_bins)
    plain: list[float] = []
    corrected: list[float] = []
    num_trained = round(kept * num_decided)
    for _ in range(400):
        names = [str(rng.randrange(num_bins)) for _ in range(num_decided)]
        rng.shuffle(names)
        decided = {name: float(names.count(name)) for name in set(names)}
        trained = {name: float(names[:num_trained].count(name)) for name in set(names)}
        plain.append(jensen_shannon(decided, trained))
        found = drift(Mix(decided=decided, trained=trained))
        assert found is not None
        corrected.append(found)
    bias = sampling_bias(num_bins=num_bins, num_trained=num_trained, num_decided=num_decided)
    assert sum(plain) / len(plain) == pytest.approx(bias, rel=0.15)
    allowed = chance(num_bins=num_bins, num_trained=num_trained, num_decided=num_decided)
    assert sum(each > allowed for each in plain) / len(plain) < 0.08
    assert sum(corrected) / len(corrected) < 0.15 * bias


@pytest.mark.parametrize(("num_bins", "num_groups", "kept"), [(3, 120, 0.5), (10, 200, 0.5), (2, 90, 0.7)])
def test_groups_that_are_dropped_whole_count_as_one_sample_each(
    num_bins: int, num_groups: int, kept: float
) -> None:
    """Whole groups of eight, dropped by chance: eight times as noisy as as many samples, and still no breach."""
    rng = random.Random(num_groups)
    corrected: list[float] = []
    for _ in range(400):
        names = [str(rng.randrange(num_bins)) for _ in range(num_groups)]
        decided = {name: 8.0 * names.count(name) for name in set(names)}
        kept_names = names[: round(kept * num_groups)]
        trained = {name: 8.0 * kept_names.count(name) for name in set(names)}
        found = drift(Mix(decided=decided, trained=trained), group_size=8)
        if found is not None:
            corrected.append(found)
    assert len(corrected) == 400
    bound = declared(SlosConfig(), max_lag=4, max_age_s=300.0)["bin_drift"].bound
    assert sum(each > bound for each in corrected) / len(corrected) < 0.01


@given(
    steps=st.lists(st.tuples(st.floats(0.01, 50.0), st.integers(0, 9), st.integers(0, 9)), max_size=120),
    window_s=st.floats(10.0, 200.0),
)
def test_window_holds_the_increase_since_about_its_start(
    steps: list[tuple[float, int, int]], window_s: float
) -> None:
    window, now_s, decided, trained = MixWindow(), 0.0, 0.0, 0.0
    history: list[tuple[float, float, float]] = []
    for elapsed_s, dropped, kept in steps:
        now_s += elapsed_s
        decided, trained = decided + dropped + kept, trained + kept
        history.append((now_s, decided, trained))
        window = window.note(Mix({"a": decided}, {"a": trained}), at_s=now_s, window_s=window_s)
        assert len(window.samples) <= SAMPLES_MAX
    if not history:
        assert window.increase() == Mix({}, {})
        return
    first = window.samples[0]
    assert (first.at_s, first.mix.decided["a"], first.mix.trained["a"]) in history
    increase = window.increase()
    assert increase.decided["a"] == decided - first.mix.decided["a"]
    assert increase.trained["a"] == trained - first.mix.trained["a"]
    # It covers at least the window where there are enough samples, and no more samples than needed.
    if history[0][0] <= now_s - window_s:
        assert first.at_s <= now_s - window_s
    if len(window.samples) > 2:
        assert window.samples[1].at_s > now_s - window_s


def test_counter_that_restarted_and_a_clock_that_went_back_do_not_make_negative_counts() -> None:
    window = MixWindow().note(Mix({"a": 50.0}, {"a": 40.0}), at_s=0.0, window_s=10.0)
    window = window.note(Mix({"a": 3.0}, {"a": 2.0}), at_s=1.0, window_s=10.0)
    assert window.increase() == Mix({"a": 3.0}, {"a": 2.0})
    window = window.note(Mix({"a": 9.0}, {"a": 9.0}), at_s=-5.0, window_s=10.0)
    assert window.increase() == Mix({"a": 0.0}, {"a": 0.0})
