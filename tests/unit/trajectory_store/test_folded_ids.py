"""The set of folded trajectories against a set of their names."""

import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.support.examples import num_examples
from tidegate.core.ids import position_of, trajectory_at
from tidegate.trajectory_store.folded_ids import FoldedIds, TaskRun

ADDED = st.lists(
    st.dictionaries(st.integers(0, 40), st.integers(1, 15), min_size=1, max_size=12), min_size=1, max_size=8
)


@pytest.mark.slow
@settings(max_examples=num_examples(200), deadline=None)
@given(ADDED)
def test_set_holds_exactly_what_was_added_and_its_changes_make_the_same_table(
    added: list[dict[int, int]],
) -> None:
    ids, expected = FoldedIds(), set[str]()
    table: dict[int, TaskRun] = {}
    for masks in added:
        ids, change = ids.with_added(masks)
        table = {first: run for first, run in table.items() if not change.first <= first <= change.last}
        table |= {run.first: run for run in change.runs}
        expected |= {
            trajectory_at(task, bit) for task, mask in masks.items() for bit in range(4) if mask >> bit & 1
        }
        assert set(ids.names()) == expected
        assert [table[first] for first in sorted(table)] == list(ids.runs)
        everything = {trajectory_at(task, sample) for task in range(42) for sample in range(5)}
        assert {name for name in everything if name in ids} == expected
    joined = list(zip(ids.runs, ids.runs[1:], strict=False))
    assert all(a.last + 1 < b.first or a.samples != b.samples for a, b in joined), "as few runs as possible"


def test_tasks_that_end_in_order_are_one_entry_however_many() -> None:
    ids = FoldedIds()
    for first in range(0, 100_000, 1000):
        ids, _ = ids.with_added(dict.fromkeys(range(first, first + 1000), 0xFF))
    assert len(ids.runs) == 1
    assert sys.getsizeof(ids.runs[0]) < 100
    assert trajectory_at(99_999, 7) in ids
    assert trajectory_at(99_999, 8) not in ids


def test_ids_of_others_are_not_in_the_set() -> None:
    ids, _ = FoldedIds().with_added({1: 1})
    assert position_of("t1.0") is None
    assert "t1.0" not in ids
    assert "t0000000001.0" in ids
