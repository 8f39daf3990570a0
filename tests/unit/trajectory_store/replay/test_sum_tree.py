import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.support.statistics import chi_square_limit, chi_square_of
from tidegate.trajectory_store.replay.selectors import Selector, SelectorSettings, usable_priorities
from tidegate.trajectory_store.replay.sum_tree import SumTree

WEIGHTS = arrays(np.float64, st.integers(1, 65), elements=st.floats(0.0, 1e6) | st.just(0.0))


def leaves(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def tree_of(weights: np.ndarray) -> SumTree:
    tree = SumTree(len(weights))
    tree.put(np.arange(len(weights)), weights)
    return tree


def slow_draw(weights: np.ndarray, uniforms: np.ndarray) -> list[int]:
    """The leaf whose share of the total each number falls into, found one leaf after the other."""
    drawn: list[int] = []
    for uniform in uniforms:
        rest = uniform * math.fsum(weights)
        chosen = -1
        for leaf, weight in enumerate(weights):
            if weight == 0.0:
                continue
            chosen = leaf
            if rest < weight:
                break
            rest -= weight
        drawn.append(chosen)
    return drawn


@given(weights=arrays(np.int64, st.integers(1, 65), elements=st.integers(0, 1000)), data=st.data())
def test_draws_the_leaf_that_a_search_from_left_to_right_finds(
    weights: np.ndarray, data: st.DataObject
) -> None:
    if not weights.any():
        return
    # Integers over a power of two: both ways compute without rounding, so they agree on every number.
    steps = data.draw(arrays(np.int64, 8, elements=st.integers(0, 2**20 - 1)))
    exact = weights.astype(np.float64)
    uniforms = (steps + 0.5) / 2**20
    assert tree_of(exact).draw(uniforms).tolist() == slow_draw(exact, uniforms)


@given(weights=WEIGHTS, data=st.data())
def test_total_is_the_sum_after_any_puts(weights: np.ndarray, data: st.DataObject) -> None:
    tree = tree_of(weights)
    for _ in range(3):
        start = data.draw(st.integers(0, len(weights) - 1))
        stop = data.draw(st.integers(start, len(weights)))
        new = data.draw(arrays(np.float64, stop - start, elements=st.floats(0.0, 1e3)))
        if data.draw(st.booleans()):
            tree.put_range(start, new)
        else:
            order = np.array(data.draw(st.permutations(range(start, stop))), np.int64)
            tree.put(order, new[order - start])
        weights[start:stop] = new
    assert tree.total == pytest.approx(math.fsum(weights), rel=1e-12, abs=1e-12)
    np.testing.assert_array_equal(tree.weights(np.arange(len(weights))), weights)


@given(weights=WEIGHTS, uniform=st.floats(0.0, 1.0, exclude_max=True))
def test_leaf_of_weight_zero_is_never_drawn(weights: np.ndarray, uniform: float) -> None:
    tree = tree_of(weights)
    if tree.total == 0.0:
        return
    (leaf,) = tree.draw(np.array([uniform]))
    assert leaf < len(weights)
    assert weights[leaf] > 0.0


def test_rounding_at_the_end_of_the_range_draws_no_empty_leaf() -> None:
    tree = tree_of(np.array([0.1, 0.2, 0.3, 0.0, 0.0]))
    assert tree.draw(np.array([np.nextafter(1.0, 0.0)])).tolist() == [2]


def test_last_weight_counts_for_a_leaf_that_is_named_twice() -> None:
    tree = SumTree(4)
    tree.put(leaves(1, 1, 2), np.array([5.0, 2.0, 1.0]))
    assert tree.total == 3.0


@pytest.mark.parametrize("selector", ["uniform", "prioritised", "recency"])
def test_frequencies_are_those_of_the_slow_twin(selector: Selector) -> None:
    rng = np.random.default_rng(7)
    num_units, num_draws = 200, 100_000
    priorities = rng.exponential(size=num_units).astype(np.float32)
    arrivals = np.sort(rng.integers(0, 300, num_units))
    settings = SelectorSettings(selector=selector, priority_exponent=0.7, recency_half_life=100.0)
    expected = np.array(
        [
            {"uniform": 1.0, "prioritised": float(p) ** 0.7, "recency": 2.0 ** ((a - 300) / 100.0)}[selector]
            for p, a in zip(priorities, arrivals, strict=True)
        ]
    )
    weights = settings.weights(priorities, arrivals, reference=50)
    drawn = tree_of(weights).draw(rng.random(num_draws))
    observed = np.bincount(drawn, minlength=num_units)
    assert chi_square_of(observed, expected / expected.sum()) < chi_square_limit(num_units - 1)
    np.testing.assert_allclose(weights / weights.sum(), expected / expected.sum(), rtol=1e-6)


def test_a_wrong_weight_is_found_by_the_chi_square() -> None:
    rng = np.random.default_rng(7)
    weights = rng.exponential(size=200)
    wrong = weights.copy()
    wrong[np.argsort(weights)[-10:]] *= 1.2
    observed = np.bincount(tree_of(wrong).draw(rng.random(100_000)), minlength=200)
    assert chi_square_of(observed, weights / weights.sum()) > chi_square_limit(199)


def test_recency_moves_its_reference_before_weights_overflow() -> None:
    settings = SelectorSettings(selector="recency", recency_half_life=10.0)
    assert not settings.must_move(reference=0, newest=2560)
    assert settings.must_move(reference=0, newest=2561)
    weights = settings.weights(np.ones(2, np.float32), np.array([2560, 2550]), reference=0)
    assert np.isfinite(weights).all()
    assert weights[0] == 2 * weights[1]


def test_priorities_that_are_not_finite_or_negative_are_not_usable() -> None:
    priorities = np.array([0.0, 1.0, np.nan, np.inf, -1.0], np.float32)
    assert usable_priorities(priorities).tolist() == [True, True, False, False, False]
