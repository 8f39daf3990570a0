import hypothesis.strategies as st
import pytest
from hypothesis import given

from tidegate.algorithms.schedules import linear, warmup_then_linear


def at(update: int, *, warmup_updates: int = 10, anneal_updates: int = 110) -> float:
    return warmup_then_linear(
        2.0, update=update, warmup_updates=warmup_updates, anneal_updates=anneal_updates, final_share=0.1
    )


def test_it_rises_to_the_peak_then_falls_to_its_final_share_and_stays() -> None:
    assert [at(1), at(5), at(10)] == pytest.approx([0.2, 1.0, 2.0])
    assert at(60) == pytest.approx(1.1)
    assert [at(110), at(111), at(10_000)] == pytest.approx([0.2, 0.2, 0.2])


def test_without_an_anneal_the_peak_is_kept() -> None:
    assert {at(update, warmup_updates=0, anneal_updates=0) for update in (1, 50, 10_000)} == {2.0}


@given(st.integers(1, 1000), st.integers(0, 100), st.integers(0, 1000))
def test_it_stays_between_nothing_and_the_peak(update: int, warmup: int, anneal: int) -> None:
    assert 0.0 < at(update, warmup_updates=warmup, anneal_updates=anneal) <= 2.0


def test_updates_are_counted_from_1() -> None:
    with pytest.raises(ValueError, match="from 1"):
        at(0)


def test_a_line_reaches_its_end_and_stays_there() -> None:
    found = [linear(0.5, 0.1, update=update, updates=4) for update in (1, 2, 4, 5, 100)]
    assert found == pytest.approx([0.4, 0.3, 0.1, 0.1, 0.1])


def test_a_line_of_no_updates_keeps_its_start() -> None:
    assert linear(0.5, 0.1, update=7, updates=0) == 0.5
    with pytest.raises(ValueError, match="from 1"):
        linear(0.5, 0.1, update=0, updates=3)
