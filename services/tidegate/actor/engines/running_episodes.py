"""Which rows of a segment are steps, and which episodes ended in it: kept from one segment into the next.

The layout is that of ``algorithms.segments``. Shapes: T steps, N environments.
"""

import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import EpisodeEnd


class RunningEpisodes:
    """The running episodes of N environments: whether each ended at the step before, its return and its length."""

    def __init__(self, *, faulted_N: NDArray[np.bool_]) -> None:
        """``faulted_N``: environments whose first reset failed, so that their first row is no step."""
        self._done_N = faulted_N.copy()
        self._returns_N: NDArray[np.float64] = np.zeros(len(faulted_N))
        self._lengths_N: NDArray[np.int64] = np.zeros(len(faulted_N), np.int64)

    def close_segment(
        self,
        *,
        rewards_TN: NDArray[np.float32],
        terminated_TN: NDArray[np.bool_],
        truncated_TN: NDArray[np.bool_],
        faulted_TN: NDArray[np.bool_] | None,
    ) -> tuple[NDArray[np.bool_], tuple[EpisodeEnd, ...]]:
        """The valid rows of a segment, and the episodes that ended in it, in order.

        ``faulted_TN``: steps that failed, None without any (``vector_envs.guarded``). An episode whose step t failed is
        truncated at t - 1, which is written into ``truncated_TN``; row t is no step. It has no return: how it would
        have ended is unknown. Where t - 1 belongs to the segment before nothing is missing there, because a segment's
        last step bootstraps from the observation after it anyway.
        """
        done_TN = terminated_TN | truncated_TN
        cut_TN = None
        valid_TN = np.empty_like(done_TN)
        np.logical_not(self._done_N, out=valid_TN[0])
        if faulted_TN is not None:
            cut_TN = np.zeros_like(done_TN)
            cut_TN[:-1] = faulted_TN[1:] & ~done_TN[:-1]
            truncated_TN |= cut_TN
            done_TN |= cut_TN
            valid_TN[0] &= ~faulted_TN[0]
            self._returns_N[faulted_TN[0]] = 0.0
            self._lengths_N[faulted_TN[0]] = 0
        np.logical_not(done_TN[:-1], out=valid_TN[1:])
        self._done_N = done_TN[-1].copy()
        return valid_TN, self._end(rewards_TN, valid_TN, done_TN & valid_TN, cut_TN)

    def _end(
        self,
        rewards_TN: NDArray[np.float32],
        valid_TN: NDArray[np.bool_],
        ended_TN: NDArray[np.bool_],
        cut_TN: NDArray[np.bool_] | None,
    ) -> tuple[EpisodeEnd, ...]:
        """The ends of episodes; a position counts the segment's steps up to and with the one that ended it."""
        ends: list[EpisodeEnd] = []
        begins: dict[int, int] = {}
        steps, columns = np.nonzero(ended_TN)
        for step, column in zip(steps.tolist(), columns.tolist(), strict=True):
            window = slice(begins.get(column, 0), step + 1)
            if cut_TN is None or not cut_TN[step, column]:
                ends.append(
                    EpisodeEnd(
                        episode_return=float(
                            self._returns_N[column] + rewards_TN[window, column].sum(dtype=np.float64)
                        ),
                        length=int(self._lengths_N[column] + np.count_nonzero(valid_TN[window, column])),
                        position=step + 1,
                    )
                )
            begins[column] = step + 1
            self._returns_N[column] = 0.0
            self._lengths_N[column] = 0
        # Steps after the last end of each column belong to episodes that continue.
        running_TN = valid_TN.copy()
        for column, begin in begins.items():
            running_TN[:begin, column] = False
        self._returns_N += (rewards_TN * running_TN).sum(axis=0, dtype=np.float64)
        self._lengths_N += running_TN.sum(axis=0)
        return tuple(ends)
