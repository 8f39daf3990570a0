import numpy as np

from tidegate.algorithms.replay_units import complete_units, sequence_starts, window_lengths


def row(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one environment: ``.`` a step, ``e`` one that ends its episode, ``x`` no step."""
    return np.array([[char != "x" for char in text]]), np.array([[char == "e" for char in text]])


def complete(text: str, *, num_steps: int, horizon: int) -> list[int]:
    valid, ended = row(text)
    return np.flatnonzero(complete_units(valid, ended, num_steps=num_steps, horizon=horizon)[0]).tolist()


def test_window_that_fits_the_known_rows_is_complete() -> None:
    assert complete(".....", num_steps=5, horizon=3) == [0, 1, 2]
    assert complete(".......", num_steps=5, horizon=3) == [0, 1, 2, 3, 4]


def test_window_that_meets_an_end_is_complete_and_a_row_without_a_step_begins_none() -> None:
    assert complete("..ex..", num_steps=6, horizon=4) == [0, 1, 2]
    assert complete("..e", num_steps=3, horizon=9) == [0, 1, 2]


def test_window_that_meets_a_gap_before_an_end_is_never_complete() -> None:
    assert complete("..x....", num_steps=7, horizon=2) == [0, 3, 4, 5]


def test_sequences_begin_on_the_grid_and_after_rows_without_a_step() -> None:
    valid, _ = row("..ex..ex")
    assert np.flatnonzero(sequence_starts(valid, period=3)[0]).tolist() == [0, 4, 6]


def test_window_ends_with_the_first_step_that_ends_an_episode() -> None:
    ended = np.array([[False, True, True], [False, False, False], [True, False, False]])
    assert window_lengths(ended).tolist() == [2, 3, 1]
