"""Whether parameters are numbers: what diverged is refused wherever it would be used.

Large arrays are looked at in pieces, so that no copy of their size is made and other threads run in between.
"""

import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Array, PolicySnapshot

# Elements looked at together: 16 MiB of float32, about 4 ms.
PIECE = 1 << 22


def all_finite(array: Array) -> bool:
    """Whether all elements are numbers, neither infinite nor NaN."""
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[start : start + PIECE]).all()) for start in range(0, flat.size, PIECE))


def check_finite(snapshot: PolicySnapshot) -> None:
    """Whether all of a policy's values are numbers.

    Raises:
        RecordError: some are not finite; the message names the first such tensor.
    """
    for name, tensor in snapshot.tensors.items():
        if not all_finite(tensor):
            raise RecordError(
                f"Policy {snapshot.version} holds values in {name!r} that are not finite",
                why="its update diverged",
                fix="lower the learning rate and start from an earlier checkpoint",
            )
