"""How likely each unit is drawn: a weight for each, of which its probability is the share of the total.

``uniform``: all alike. ``prioritised``: the priority to the power of ``priority_exponent`` (Schaul et al. 2015,
eq. 1). ``recency``: halves with every ``recency_half_life`` steps that arrived since.
"""

from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Selector: TypeAlias = Literal["uniform", "prioritised", "recency"]

# A priority of zero would never be drawn again, however wrong its estimate becomes (Schaul et al. 2015, section 3.3).
PRIORITY_MIN = 1e-6
# Weights by recency are relative to a reference arrival; float64 holds 2^±1022, so that it is moved well before.
HALF_LIVES_MAX = 256.0


class SelectorSettings(msgspec.Struct, frozen=True):
    """The selector and its parameters (``config.ReplayConfig``)."""

    selector: Selector = "uniform"
    priority_exponent: float = 0.6
    recency_half_life: float = 100_000.0

    def weights(
        self, priorities_B: NDArray[np.float32], arrivals_B: NDArray[np.int64], *, reference: int
    ) -> NDArray[np.float64]:
        """The weights of units.

        ``arrivals_B``: how many steps had arrived when each did; weights by recency are relative to ``reference``.
        """
        match self.selector:
            case "uniform":
                return np.ones(len(priorities_B))
            case "prioritised":
                return np.power(priorities_B, self.priority_exponent, dtype=np.float64)
            case "recency":
                return np.exp2((arrivals_B - reference) / self.recency_half_life)

    def must_move(self, *, reference: int, newest: int) -> bool:
        """Whether weights must be computed again with ``newest`` as reference, because they grow too large."""
        return self.selector == "recency" and newest - reference > HALF_LIVES_MAX * self.recency_half_life


def usable_priorities(priorities_B: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which priorities a learner may set: finite and not negative. NaN and infinity are not."""
    return np.isfinite(priorities_B) & (priorities_B >= 0.0)
