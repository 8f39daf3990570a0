"""Descriptions of environments as JSON."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentDescription,
    Space,
    TupleSpace,
    description_from_json,
    description_to_json,
)

BOXES: st.SearchStrategy[Space] = st.builds(
    BoxSpace,
    shape=st.just((2,)),
    dtype=st.just("float32"),
    low=st.tuples(st.floats(-5, 0) | st.just(-math.inf), st.floats(-5, 0)),
    high=st.tuples(st.floats(0, 5), st.floats(0, 5) | st.just(math.inf)),
)
# Parts may have the names of a box' bounds.
NAMES = st.sampled_from(["low", "high", "type", "position"])
SPACES: st.SearchStrategy[Space] = st.recursive(
    BOXES | st.builds(DiscreteSpace, st.integers(1, 9)),
    lambda parts: (
        st.builds(DictSpace, st.dictionaries(NAMES, parts, min_size=1))
        | st.builds(TupleSpace, st.lists(parts, min_size=1, max_size=3).map(tuple))
    ),
)


@given(SPACES)
def test_description_reads_back_from_strict_json_with_its_infinite_bounds(space: Space) -> None:
    description = EnvironmentDescription("Made-v0", space, DiscreteSpace(2), max_episode_steps=7)
    text = description_to_json(description)
    json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(AssertionError(name)))
    assert description_from_json(text) == description
