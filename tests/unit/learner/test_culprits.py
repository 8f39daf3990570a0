"""The search for the trajectories that make an update not finite, and the values that name them."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.records import Array
from tidegate.learner.culprits import TRIALS_MAX, ExtremeValue, extreme_value, search


@given(num_parts=st.integers(2, 300), data=st.data())
def test_finds_exactly_the_parts_that_are_not_finite(num_parts: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, min(4, num_parts - 1)))
    poisoned = data.draw(st.sets(st.integers(0, num_parts - 1), min_size=count, max_size=count))
    trials: list[Sequence[int]] = []

    def is_finite(parts: Sequence[int]) -> bool:
        trials.append(parts)
        return poisoned.isdisjoint(parts)

    assert set(search(num_parts, is_finite)) == poisoned
    assert len(trials) <= len(poisoned) * (num_parts.bit_length() + 1)


def test_names_one_of_two_whose_sum_alone_is_not_finite() -> None:
    assert search(8, lambda parts: not {2, 5} <= set(parts)) == [5]


def test_names_no_culprit_when_every_part_is_not_finite() -> None:
    trials: list[Sequence[int]] = []

    def is_finite(parts: Sequence[int]) -> bool:
        trials.append(parts)
        return False

    assert search(1000, is_finite) == []
    assert len(trials) < TRIALS_MAX + 16


@pytest.mark.parametrize(
    ("tensors", "reward", "expected"),
    [
        ({"rewards": np.array([[1.0, 3e38]], np.float32)}, None, ("rewards", (0, 1))),
        ({"rewards": np.array([1e20, np.nan]), "values": np.array([1e30])}, None, ("rewards", (1,))),
        ({"tokens": np.array([2**40])}, 1e300, ("reward", ())),
        ({}, None, ("reward", ())),
    ],
)
def test_value_that_names_a_trajectory(
    tensors: dict[str, Array], reward: float | None, expected: tuple[str, tuple[int, ...]]
) -> None:
    found = extreme_value(tensors, reward=reward)
    assert (found.tensor, found.position) == expected
    assert found.is_suspicious == bool(tensors)


def test_value_is_written_as_it_is_indexed() -> None:
    assert str(ExtremeValue("rewards", (3, 1), 3e38)) == "rewards[3, 1] is 3e+38"
    assert str(ExtremeValue("reward", (), 1e300)) == "reward is 1e+300"
