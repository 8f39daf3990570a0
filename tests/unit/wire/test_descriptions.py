"""Descriptions of environments as messages: any space comes back, and contradictions are refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import RecordError
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentDescription,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
)
from tidegate.v1 import environment_service_pb2 as pb
from tidegate.v1 import space_pb2
from tidegate.wire.descriptions import (
    description_from_proto,
    description_to_proto,
    space_from_proto,
    space_to_proto,
)

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
BOUNDS = st.floats(allow_nan=False)


@st.composite
def boxes(draw: st.DrawFn) -> BoxSpace:
    shape = draw(SHAPES)
    size = draw(st.sampled_from([1, math.prod(shape)]))
    low, high = (tuple(draw(st.lists(BOUNDS, min_size=size, max_size=size))) for _ in range(2))
    return BoxSpace(shape, draw(st.sampled_from(["float32", "uint8", "int64"])), low, high)


@st.composite
def multi_discretes(draw: st.DrawFn) -> MultiDiscreteSpace:
    shape = draw(SHAPES)
    size = math.prod(shape)
    nums = draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    starts = draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size))
    return MultiDiscreteSpace(shape, tuple(nums), tuple(starts))


LEAVES: st.SearchStrategy[Space] = st.one_of(
    boxes(),
    multi_discretes(),
    st.builds(DiscreteSpace, st.integers(1, 2**40), st.integers(-(2**40), 2**40)),
    st.builds(MultiBinarySpace, SHAPES),
)
SPACES: st.SearchStrategy[Space] = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.dictionaries(st.text(max_size=3), parts, max_size=3).map(DictSpace),
        st.lists(parts, max_size=3).map(tuple).map(TupleSpace),
    ),
    max_leaves=5,
)


@given(
    observations=SPACES,
    actions=SPACES,
    steps=st.integers(0, 2**40),
    rate=st.floats(0.0, 1e9),
    vectorised=st.booleans(),
)
def test_description_comes_back_as_it_was_sent(
    observations: Space, actions: Space, steps: int, rate: float, vectorised: bool
) -> None:
    sent = EnvironmentDescription("my_module:Mine-v0", observations, actions, steps, vectorised, rate)
    assert description_from_proto(description_to_proto(sent)) == sent


def test_parts_keep_their_order() -> None:
    space = DictSpace({"b": DiscreteSpace(2), "a": DiscreteSpace(3)})
    received = space_from_proto(space_to_proto(space))
    assert isinstance(received, DictSpace)
    assert list(received.spaces) == ["b", "a"]


@pytest.mark.parametrize(
    "space",
    [
        BoxSpace((2, 2), "float32", (0.0, 0.0, 0.0), (1.0,)),
        BoxSpace((-1,), "float32", (0.0,), (1.0,)),
        DiscreteSpace(0),
        MultiDiscreteSpace((2,), (2,), (0,)),
        MultiDiscreteSpace((2,), (2, 0), (0, 0)),
        MultiBinarySpace((2, -2)),
        TupleSpace((DiscreteSpace(-1),)),
    ],
)
def test_space_that_contradicts_itself_is_refused(space: Space) -> None:
    with pytest.raises(RecordError, match="contradicts itself"):
        space_from_proto(space_to_proto(space))


def test_space_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RecordError, match="of an unknown kind"):
        space_from_proto(space_pb2.Space())
    with pytest.raises(RecordError, match="of an unknown kind"):
        description_from_proto(pb.DescribeEnvironmentResponse(env_id="Mine-v0"))
