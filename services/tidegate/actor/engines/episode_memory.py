"""The state of a policy with memory in an actor: carried from step to step and segment to segment, per environment.

It begins at 0 in each episode. The row after an episode's end is no step, but its observation bootstraps a truncated
episode: the state still reaches that row, and is emptied after it. The learner unrolls by the same rule
(``algorithms.sequences``).

Shapes: N environments, M numbers of state.
"""

import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array


class EpisodeMemory:
    """``state_NM`` before the next row of N environments; never changed in place, so that a segment may record it."""

    def __init__(self, *, memory_size: int, faulted_N: NDArray[np.bool_]) -> None:
        """``faulted_N``: environments whose first reset failed, so that their first row is no step."""
        self.state_NM: Array = np.zeros((len(faulted_N), memory_size), np.float32)
        self._ended_N = faulted_N.copy()

    def advance(
        self, next_NM: Array, *, ended_N: NDArray[np.bool_], faulted_N: NDArray[np.bool_] | None
    ) -> None:
        """After a row: the policy's state after it, whether its step ended the episode, and whether it failed."""
        is_no_step_N = self._ended_N if faulted_N is None else self._ended_N | faulted_N
        self.state_NM = np.where(is_no_step_N[:, None], np.float32(0.0), next_NM)
        self._ended_N = ended_N
