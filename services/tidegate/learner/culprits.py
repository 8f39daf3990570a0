"""Which trajectories make an update not finite: found by updates of smaller parts of its batch, and named by a value.

Parts are whole groups of trajectories, or trajectories of replay with their units; positions count them in their order.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from tidegate.core.ids import TrajectoryId
from tidegate.core.records import Array

# Trial updates of one search. A culprit among 4,096 parts takes 13.
TRIALS_MAX = 64
# From here on a few thousand values, or the square of one, leave float32. What an environment means is far below.
SUSPICIOUS_MAGNITUDE = 1e15


class ExtremeValue(msgspec.Struct, frozen=True):
    """The value of a trajectory that is farthest from what float32 holds: ``tensor[position]`` is ``value``."""

    tensor: str
    position: tuple[int, ...]
    value: float

    @property
    def is_suspicious(self) -> bool:
        """Whether it alone explains an update that is not finite."""
        return not abs(self.value) < SUSPICIOUS_MAGNITUDE

    def __str__(self) -> str:
        """As logs and the ledger have it."""
        return f"{self.tensor}{list(self.position) if self.position else ''} is {self.value:g}"


class Culprit(msgspec.Struct, frozen=True):
    """A trajectory that cannot be trained on; ``actor_id``: empty of units of replay, whose records the store keeps."""

    trajectory_id: TrajectoryId
    actor_id: str
    found: ExtremeValue

    def __str__(self) -> str:
        """As logs and the ledger have it."""
        by = f" of actor {self.actor_id}" if self.actor_id else ""
        return f"{self.trajectory_id}{by} is the reason; its most extreme value: {self.found}"


def extreme_value(tensors: Mapping[str, Array], *, reward: float | None = None) -> ExtremeValue:
    """The first value that is no number, else the largest by magnitude; ``reward``: a scalar beside the tensors."""
    worst = ExtremeValue("reward", (), 0.0 if reward is None else reward)
    for name, tensor in sorted(tensors.items()):
        if tensor.dtype.kind != "f" or not tensor.size:
            continue
        magnitudes = np.abs(tensor)
        # No number sorts as the largest.
        index = int(np.argmax(magnitudes))
        value = float(tensor.reshape(-1)[index])
        if math.isnan(value) or abs(value) > abs(worst.value):
            position = tuple(int(place) for place in np.unravel_index(index, tensor.shape))
            worst = ExtremeValue(name, position, value)
        if math.isnan(worst.value):
            break
    return worst


def search(num_parts: int, is_finite: Callable[[Sequence[int]], bool]) -> list[int]:
    """Parts without which the update of the others is finite; empty if the update is not finite whatever it is of.

    ``is_finite`` of all parts is known to be false. Deterministic: the shortest run of first parts that is not finite
    is found by halving, its last part is taken out, and the rest is tried again. At most ``TRIALS_MAX`` trials.
    """
    left, found = list(range(num_parts)), list[int]()
    trials = 0
    while left:
        finite, broken = 0, len(left)
        while broken - finite > 1:
            middle = (finite + broken) // 2
            trials += 1
            if is_finite(left[:middle]):
                finite = middle
            else:
                broken = middle
        found.append(left.pop(broken - 1))
        trials += 1
        if left and is_finite(left):
            return found
        # What remains is not finite either; half of a batch is not poisoned by accident.
        if trials >= TRIALS_MAX:
            break
    return []
