"""Gymnasium's spaces as plain values, and observations held against them."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
    observation_leaves,
    recorded_shape,
)
from tidegate.vector_envs.spaces import BOUNDS_MAX, check_observation, plain_space

INF = float("inf")


@pytest.mark.parametrize(
    ("space", "plain"),
    [
        (gym_spaces.Box(0, 255, (4, 84, 84), np.uint8), BoxSpace((4, 84, 84), "uint8", (0.0,), (255.0,))),
        (
            gym_spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), dtype=np.float64),
            BoxSpace((2,), "float64", (-1.0, -INF), (1.0, INF)),
        ),
        (gym_spaces.Box(-2.0, 2.0, ()), BoxSpace((), "float32", (-2.0,), (2.0,))),
        (gym_spaces.Discrete(5, start=-1), DiscreteSpace(5, -1)),
        (gym_spaces.MultiDiscrete([3, 2], start=[0, 4]), MultiDiscreteSpace((2,), (3, 2), (0, 4))),
        (
            gym_spaces.MultiDiscrete(np.array([[3, 2], [2, 2]])),
            MultiDiscreteSpace((2, 2), (3, 2, 2, 2), (0, 0, 0, 0)),
        ),
        (gym_spaces.MultiBinary(3), MultiBinarySpace((3,))),
        (
            gym_spaces.Dict({"b": gym_spaces.Discrete(2), "a": gym_spaces.MultiBinary([2, 2])}),
            DictSpace({"a": MultiBinarySpace((2, 2)), "b": DiscreteSpace(2)}),
        ),
        (
            gym_spaces.Tuple((gym_spaces.Discrete(2), gym_spaces.Tuple((gym_spaces.Discrete(3),)))),
            TupleSpace((DiscreteSpace(2), TupleSpace((DiscreteSpace(3),)))),
        ),
    ],
)
def test_a_space_becomes_its_plain_value(space: gym_spaces.Space[Any], plain: Space) -> None:
    assert plain_space(space, place="it") == plain


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym_spaces.Text(4), r"it is Text\(.*supported are Box"),
        (gym_spaces.Dict({"a": gym_spaces.Sequence(gym_spaces.Discrete(2))}), r"it.a is Sequence\("),
        (gym_spaces.Tuple((gym_spaces.Graph(gym_spaces.Discrete(2), None),)), r"it.0 is Graph\("),
        (gym_spaces.Discrete(2**40), r"it has 1,099,511,627,776 values"),
        (gym_spaces.Box(0, 1, (2048, 2048)), r"it has 4,194,304 components"),
        (
            gym_spaces.Box(np.arange(BOUNDS_MAX + 1), np.float32(np.inf), dtype=np.float32),
            "different bounds",
        ),
    ],
)
def test_a_space_that_no_segment_can_record_is_named(space: gym_spaces.Space[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plain_space(space, place="it")


def discrete(num_values: int, start: int) -> Any:
    return gym_spaces.Discrete(num_values, start=start)


SHAPES = st.lists(st.integers(1, 3), min_size=0, max_size=3).map(tuple)
LEAVES: st.SearchStrategy[Any] = st.one_of(
    SHAPES.map(lambda shape: gym_spaces.Box(-1.0, 1.0, shape)),
    SHAPES.map(lambda shape: gym_spaces.Box(0, 255, shape, np.uint8)),
    st.builds(discrete, st.integers(1, 5), st.integers(-3, 3)),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(gym_spaces.MultiDiscrete),
    st.integers(1, 4).map(gym_spaces.MultiBinary),
)
SPACES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.dictionaries(st.sampled_from("abc"), parts, min_size=1, max_size=3).map(gym_spaces.Dict),
        st.lists(parts, min_size=1, max_size=3).map(gym_spaces.Tuple),
    ),
    max_leaves=4,
)


@given(space=SPACES, seed=st.integers(0, 100))
def test_every_batch_of_samples_of_a_space_fits_its_plain_value(
    space: gym_spaces.Space[Any], seed: int
) -> None:
    batched = batch_space(space, 2)
    batched.seed(seed)
    observations: Any = batched.sample()
    plain = plain_space(space, place="it")
    check_observation(plain, observations, place="it")
    for name, leaf in observation_leaves(plain).items():
        part = observations
        for key in name.split(".")[1:]:
            part = part[key if isinstance(part, dict) else int(key)]
        assert np.shape(part) == (2, *recorded_shape(leaf))


@pytest.mark.parametrize(
    ("space", "observations", "message"),
    [
        (
            BoxSpace((2,), "float32", (0.0,), (1.0,)),
            np.zeros((1, 3)),
            r"it has the shape \(3,\). its space declares \(2,",
        ),
        (DiscreteSpace(3, start=1), np.array([4]), "it is 4. its space declares 1 to 3"),
        (MultiDiscreteSpace((2,), (2, 2), (0, 0)), np.array([[0, 2]]), r"declares \[0 0\] to \[1 1\]"),
        (DictSpace({"a": DiscreteSpace(2)}), {"a": np.array([2])}, "it, part a is 2"),
    ],
)
def test_an_observation_outside_of_its_space_is_refused(
    space: Space, observations: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_observation(space, observations, place="it")
