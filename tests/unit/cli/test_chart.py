from hypothesis import given
from hypothesis import strategies as st

from tidegate.cli.up.chart import bar, block_rows, resample


def test_resample_shows_the_last_value_known_at_each_moment() -> None:
    history = [(0.0, 1.0), (1.0, 2.0), (9.0, 3.0), (10.0, 4.0)]
    assert resample(history, width=5) == [2.0, 2.0, 2.0, 2.0, 4.0]


def test_resample_of_nothing_is_nothing() -> None:
    assert resample([], width=10) == []


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50),
    height=st.integers(1, 8),
)
def test_rows_are_as_many_and_as_wide_as_asked_for(values: list[float], height: int) -> None:
    rows = block_rows(values, height=height, low=min(values), high=max(values))
    assert [len(row) for row in rows] == [len(values)] * height


def test_column_fills_from_the_bottom() -> None:
    rows = block_rows([0.0, 0.5, 0.75, 1.0], height=2, low=0.0, high=1.0)
    assert rows == ["  ▄█", " ███"]


def test_flat_history_draws_without_a_range() -> None:
    assert block_rows([3.0, 3.0], height=1, low=3.0, high=3.0) == ["  "]


@given(share=st.floats(-1, 2), width=st.integers(0, 60))
def test_bar_has_its_width_whatever_the_share(share: float, width: int) -> None:
    filled, empty = bar(share, width=width)
    assert len(filled) + len(empty) == width
