"""Which rows may begin a unit of sampling: pure functions of where steps are valid and episodes end.

A unit is a window of up to ``horizon`` steps of one environment. It stops at the first step that ends the episode, so
it never crosses one. It is complete, and may be drawn, once it stopped or its last step exists: a window that reaches
past the segment's end waits for the environment's next segment. A row without a step (``valid`` 0) begins no unit, and
a window that meets one before an end has no last observation, so it is never complete.

A transition of n steps is a window of n that may begin at every step. A sequence begins where a recurrent state is
stored, or at the first step of an episode, whose state is the initial one.

Shapes: N environments, R known rows from the first of the segment on, T rows of the segment itself.
"""

import numpy as np
from numpy.typing import NDArray

# Beyond every row.
_NEVER = np.iinfo(np.int64).max


def complete_units(
    valid_NR: NDArray[np.bool_], ended_NR: NDArray[np.bool_], *, num_steps: int, horizon: int
) -> NDArray[np.bool_]:
    """Which of the first ``num_steps`` rows begin a complete window, (N, T)."""
    num_known = valid_NR.shape[1]
    rows_R = np.arange(num_known, dtype=np.int64)
    first_end_NR = _next_at(ended_NR, rows_R)
    first_gap_NR = _next_at(~valid_NR, rows_R)
    last_NT = np.minimum(first_end_NR, rows_R + horizon - 1)[:, :num_steps]
    return valid_NR[:, :num_steps] & (last_NT < num_known) & (last_NT < first_gap_NR[:, :num_steps])


def sequence_starts(valid_NT: NDArray[np.bool_], *, period: int) -> NDArray[np.bool_]:
    """Where sequences may begin, (N, T): at every ``period``-th row, and at first steps of episodes."""
    starts_NT = np.zeros_like(valid_NT)
    starts_NT[:, ::period] = True
    starts_NT[:, 1:] |= ~valid_NT[:, :-1]
    return starts_NT & valid_NT


def window_lengths(ended_BH: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Steps of each complete window (B, H): up to and with the first that ends an episode."""
    has_end_B = ended_BH.any(axis=1)
    first_end_B = np.argmax(ended_BH, axis=1).astype(np.int64)
    return np.where(has_end_B, first_end_B + 1, np.int64(ended_BH.shape[1]))


def _next_at(flags_NR: NDArray[np.bool_], rows_R: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row the first one at or after it that is flagged."""
    flagged_NR = np.where(flags_NR, rows_R, _NEVER)
    return np.minimum.accumulate(flagged_NR[:, ::-1], axis=1)[:, ::-1]
