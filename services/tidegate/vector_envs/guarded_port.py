"""What an actor reads of guarded environments beside Gymnasium's interface, without importing Gymnasium."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidegate.vector_envs.faults import Call, FaultLog

# Seeds of environments are below this: some of them keep theirs in 32 bits with a sign.
SEED_MAX = 1 << 31


class Guarded(Protocol):
    """A guarded vector environment: ``envs.unwrapped`` of what ``opening`` opens, below all wrappers.

    ``faulted_N``: the copies whose last ``step`` or ``reset`` failed, or that were left out of it; ``any_faulted``:
    whether there are any. ``num_calls``, ``call`` and ``copy``: what runs now, for a watch in another thread.
    """

    faulted_N: NDArray[np.bool_]
    any_faulted: bool
    faults: FaultLog
    num_calls: int
    call: Call
    copy: int

    def draw_resets(self, rng: np.random.Generator) -> None:
        """Draw the resets from now on from ``rng``."""
        ...
