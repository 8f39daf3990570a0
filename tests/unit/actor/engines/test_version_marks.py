"""Which version made which position of a rollout."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.actor.support import version
from tidegate.actor.engines.version_marks import VersionMarks


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12),
    st.integers(1, 30),
)
def test_spans_equal_a_list_of_one_version_per_position(swaps: list[tuple[int, int]], length: int) -> None:
    marks = VersionMarks(version(0))
    made_by = [0] * 60  # reference: one entry per position
    position = 0
    for distance, step in swaps:
        position += distance
        marks.swap(position, version(step))
        made_by[position:] = [step] * (60 - position)
    spans = marks.spans(length)
    reported = [span.version.step for span in spans for _ in range(span.start, span.stop)]
    assert reported == made_by[:length]
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert all(one.version != other.version for one, other in pairwise(spans))
