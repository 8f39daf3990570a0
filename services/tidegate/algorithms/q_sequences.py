"""Q-learning on sequences of steps: which steps are trained after the burn-in, and how urgent a sequence is.

A sequence begins from the state that its actor had there, under parameters that have changed since. Its first steps,
the burn-in, only bring that state up to date: nothing is learnt from them, and no gradient goes through them. A
sequence that begins with its episode has the initial state, which no version changes, so that it needs none.

Written once for numpy, by which actors compute first priorities, and torch, for the learner. ``xp``: the module that
the arrays belong to.

Source: Kapturowski 2019, sections 2.3 and 3.

Shapes: B sequences, L steps of the longest, M numbers of state.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array


def burn_ins(memory_BM: Array, *, burn_in: int) -> NDArray[np.int64]:
    """Steps of each sequence that are not trained (B,): ``burn_in``, or 0 from the initial state.

    A state of zeros is the initial one.
    """
    return np.where(memory_BM.any(axis=1), burn_in, 0).astype(np.int64)


def trained_steps(lengths_B: Any, burn_ins_B: Any, steps_L: Any) -> Any:
    """Which steps are trained, (B, L) bool: those after the burn-in and inside the sequence's length.

    A sequence ends with its episode, so that none of them is another episode's. ``steps_L``: 0 to L - 1.
    """
    return (steps_L >= burn_ins_B[:, None]) & (steps_L < lengths_B[:, None])


def sequence_priorities(errors_BL: Any, trained_BL: Any, xp: Any, *, max_share: float) -> Any:
    """η max |δ| + (1 − η) mean |δ| over the trained steps, (B,); 0 where there are none.

    The mean alone would bury single large errors of long sequences. ``errors_BL``: TD errors; ``max_share``: η.

    Source: Kapturowski 2019, section 2.3.
    """
    sizes_BL = xp.abs(errors_BL) * trained_BL
    means_B = sizes_BL.sum(1) / xp.clip(trained_BL.sum(1), 1, None)
    return max_share * xp.amax(sizes_BL, 1) + (1.0 - max_share) * means_B
