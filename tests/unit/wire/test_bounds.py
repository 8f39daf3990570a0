"""The bounds of what comes over the wire: each is checked before the loop that it bounds."""

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

import numpy as np
import pytest

from tidegate.core.errors import RecordError
from tidegate.v1 import policy_pb2
from tidegate.wire.announcement import Announcement
from tidegate.wire.bounds import (
    LINEAGES_MAX,
    MAGNITUDE_MAX,
    STEP_MAX,
    are_summable,
    check_id,
    check_lineage,
    check_lineages,
    check_number,
    check_shape,
    is_summable,
    is_trace_parent,
)

ItemT = TypeVar("ItemT")


class Counted(Sequence[ItemT]):
    """A sequence that counts how often one of its items is read."""

    def __init__(self, item: ItemT, length: int) -> None:
        self.num_read = 0
        self._item = item
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> ItemT: ...
    @overload
    def __getitem__(self, index: slice) -> "Counted[ItemT]": ...
    def __getitem__(self, index: int | slice) -> "ItemT | Counted[ItemT]":
        if isinstance(index, slice):
            return self
        self.num_read += 1
        return self._item

    def __iter__(self) -> Iterator[ItemT]:
        for index in range(self._length):
            yield self[index]


def test_shape_of_too_many_dimensions_is_refused_before_one_is_read() -> None:
    shape = Counted(1, 100_000)
    with pytest.raises(RecordError, match="100000 dimensions"):
        check_shape(shape, "A tensor")
    assert shape.num_read == 0


def test_tree_of_too_many_lineages_is_refused_before_one_is_read() -> None:
    lineages = Counted(policy_pb2.Lineage(name="0-a"), 16_000)
    with pytest.raises(RecordError, match="16000 lineages"):
        check_lineages(lineages)
    assert lineages.num_read == 0


def test_largest_tree_is_read_lineage_by_lineage_once() -> None:
    lineages = [policy_pb2.Lineage(name=f"{index}-a") for index in range(LINEAGES_MAX)]
    message = policy_pb2.PolicyAnnouncement(
        version=policy_pb2.PolicyVersion(lineage="7-a", step=3), lineages=lineages
    )
    assert len(Announcement.from_bytes(message.SerializeToString()).tree.lineages) == LINEAGES_MAX


@pytest.mark.parametrize(
    ("lineage", "refusal"),
    [
        (policy_pb2.Lineage(name=""), "called ''"),
        (policy_pb2.Lineage(name="../../etc"), "called"),
        (policy_pb2.Lineage(name="a" * 65), "called"),
        (policy_pb2.Lineage(name="0-a\n"), "called"),
        (policy_pb2.Lineage(name="1-b", parent="a.b"), "called"),
        (policy_pb2.Lineage(name="1-b", parent="1-b"), "its parent"),
        (policy_pb2.Lineage(name="1-b", parent="0-a", fork_step=-5), "fork step"),
        (policy_pb2.Lineage(name="1-b", parent="0-a", fork_step=2**62), "fork step"),
    ],
)
def test_lineage_that_no_learner_opens_is_refused(lineage: policy_pb2.Lineage, refusal: str) -> None:
    with pytest.raises(RecordError, match=refusal):
        check_lineage(lineage)


def test_lineages_of_learners_are_taken() -> None:
    check_lineage(policy_pb2.Lineage(name="0-3fa2"))
    check_lineage(policy_pb2.Lineage(name="12-3fa2", parent="0-3fa2", fork_step=STEP_MAX))


@pytest.mark.parametrize(
    "text", ["", " ", "a b", "a\n", "-a", "a/b", "a*", "a>", "\u00e9", "a" * 129, "../a"]
)
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="is no id"):
        check_id(text, "Task")


@pytest.mark.parametrize("text", ["t0000000001", "t0000000001.15", "e-0-3fa2-17", "a" * 128])
def test_ids_of_the_platform_are_taken(text: str) -> None:
    check_id(text, "Task")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 30.1])
def test_number_out_of_its_range_is_refused_and_so_is_what_is_no_number(value: float) -> None:
    with pytest.raises(RecordError, match="must be between 0 and 30"):
        check_number(value, "max_wait_s", least=0, most=30)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_not_summable(dtype: type[np.floating], bad: float) -> None:
    values = np.zeros((3, 5), dtype)
    assert are_summable(values)
    assert are_summable(values[:0])
    values[1, 2] = bad
    assert not are_summable(values)


@pytest.mark.parametrize(
    ("dtype", "bad"), [(np.float32, 3e38), (np.float64, 1e300), (np.float64, -MAGNITUDE_MAX)]
)
def test_finite_values_that_float32_cannot_sum_are_not_summable(dtype: type[np.floating], bad: float) -> None:
    assert not are_summable(np.array([1.0, bad], dtype))
    assert not is_summable(bad)


def test_largest_summable_values_are_squared_and_summed_in_float32() -> None:
    returns = np.full(1_000_000, 1000 * MAGNITUDE_MAX, np.float32)
    assert np.isfinite(np.square(returns).sum(dtype=np.float32))


@pytest.mark.parametrize("text", ["x1", "00-" + "g" * 32 + "-" + "2" * 16 + "-01", "00-" + "1" * 32 + "-01"])
def test_malformed_trace_context_is_told_apart(text: str) -> None:
    assert not is_trace_parent(text)
    assert is_trace_parent("")
    assert is_trace_parent("00-" + "1" * 32 + "-" + "2" * 16 + "-01")
