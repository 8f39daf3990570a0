"""Weights that a user's curriculum gives: what is refused, and how bins are drawn by them."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.curriculum import BinState, Curriculum, CurriculumState
from tidegate.core.own_weights import BINS_MAX, WeightsRefused, checked_weights, too_many_bins

BINS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ([1.0, math.nan, 1.0], "range", "bin b is nan"),
        ([1.0, math.inf, 1.0], "range", "bin b is inf"),
        ([1.0, -0.5, 1.0], "range", "bin b is -0.5, below 0"),
        ([0.0, 0.0, 0.0], "zero", "all of its weights are 0"),
        ([1.0, 1.0], "length", "2 weights, and there are 3 bins"),
        ([1.0, 1.0, 1.0, 1.0], "length", "4 weights"),
        ([], "length", "0 weights"),
    ],
)
def test_weights_that_no_bin_could_be_drawn_by_are_refused(answer: list[float], kind: str, said: str) -> None:
    found = checked_weights(answer, BINS)
    assert isinstance(found, WeightsRefused)
    assert found.kind == kind
    assert said in found.why


@given(st.lists(st.floats(min_value=0.0, allow_infinity=False), min_size=1, max_size=9), st.integers(0, 99))
def test_accepted_weights_of_any_size_can_be_drawn_by(answer: list[float], seed: int) -> None:
    names = [str(index) for index in range(len(answer))]
    found = checked_weights(answer, names)
    if isinstance(found, WeightsRefused):
        assert max(answer) == 0.0
        return
    assert max(found.values()) == 1.0
    curriculum = Curriculum(names, seed=seed, strategy="own")
    indices, _ = curriculum.draw(CurriculumState(weights=found), count=20)
    assert all(found[names[index]] > 0.0 for index in indices), "a bin without weight is not drawn"


def test_bins_are_drawn_in_proportion_to_their_weights() -> None:
    curriculum = Curriculum(BINS, seed=5, strategy="own")
    state = CurriculumState(weights={"a": 1.0, "b": 0.0, "c": 0.25})
    indices, after = curriculum.draw(state, count=2000)
    drawn = Counter(BINS[index] for index in indices)
    assert drawn["b"] == 0
    assert 3.2 < drawn["a"] / drawn["c"] < 4.9
    assert after.weights == state.weights
    assert after.bins["c"].num_drawn == drawn["c"]


def test_without_weights_a_curriculum_of_ones_own_draws_as_learnable_does() -> None:
    state = CurriculumState(bins={"a": BinState(success_rate=0.5), "b": BinState(success_rate=1.0)})
    own, built_in = (Curriculum(BINS, seed=2, strategy=name) for name in ("own", "learnable"))
    assert own.draw(state, count=100)[0] == built_in.draw(state, count=100)[0]


def test_weights_of_an_earlier_curriculum_do_not_move_a_built_in_one() -> None:
    built_in = Curriculum(BINS, seed=2, strategy="learnable")
    weighted = CurriculumState(weights={"a": 0.0, "b": 0.0, "c": 1.0})
    assert built_in.draw(weighted, count=50)[0] == built_in.draw(CurriculumState(), count=50)[0]


@given(st.integers(0, 30), st.integers(0, 30))
def test_a_restart_between_two_draws_changes_nothing(first: int, second: int) -> None:
    curriculum = Curriculum(BINS * 5, seed=3, strategy="own")
    weights = {"a": 1.0, "b": 0.3, "c": 0.01}
    whole, end = curriculum.draw(CurriculumState(weights=weights), count=first + second)
    head, between = curriculum.draw(CurriculumState(weights=weights), count=first)
    tail, after = Curriculum(BINS * 5, seed=3, strategy="own").draw(between, count=second)
    assert (head + tail, after) == (whole, end)


def test_code_is_told_of_each_bin_in_the_order_of_the_dataset() -> None:
    curriculum = Curriculum(["b", "a", "b"], seed=0, strategy="own")
    state = CurriculumState(bins={"b": BinState(num_drawn=4, success_rate=0.75)})
    assert [
        (each.name, each.num_prompts, each.num_drawn, each.success_rate) for each in curriculum.bins_of(state)
    ] == [
        ("b", 2, 4, 0.75),
        ("a", 1, 0, None),
    ]


def test_too_many_bins_are_refused_by_their_number_and_by_their_names() -> None:
    assert too_many_bins([str(index) for index in range(BINS_MAX)]) == ""
    assert "1,025 bins" in too_many_bins([str(index) for index in range(BINS_MAX + 1)])
    assert "characters" in too_many_bins(["x" * 300_000])
