"""The interface between the learner's loop and a trainer of replayed units: transitions or sequences.

The tensors of units are those of ``trajectory_store.replay.windows``, which says what each of them holds.

Shapes: B units; n steps of a transition, or L of a sequence.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array
from tidegate.learner.optim.port import Trainer


class ReplayUnits(msgspec.Struct, frozen=True, eq=False):
    """A batch of units inside the staleness budget.

    ``ids_B``: a unit that was drawn twice is there twice. ``probabilities_B``: with which each was drawn, of
    ``num_open`` units that could have been. ``lags_B``: versions between the oldest version in the unit's segment and
    the one that is updated. ``tensors``: (B, ...) each, read-only.
    """

    ids_B: NDArray[np.int64]
    probabilities_B: NDArray[np.float64]
    num_open: int
    lags_B: NDArray[np.int64]
    tensors: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.ids_B)

    def rows(self, which: slice | NDArray[np.bool_]) -> "ReplayUnits":
        """Some of the units, as a batch of their own."""
        return ReplayUnits(
            ids_B=self.ids_B[which],
            probabilities_B=self.probabilities_B[which],
            num_open=self.num_open,
            lags_B=self.lags_B[which],
            tensors={name: tensor[which] for name, tensor in self.tensors.items()},
        )

    def importance_weights(self, exponent: float) -> NDArray[np.float32]:
        """``(num_open * probability) ** -exponent``, divided by the largest, (B,).

        They make up for drawing some units more often: not at all with an exponent of 0, in full with 1.
        Source: Schaul et al. 2016, section 3.4 (there the exponent is beta).
        """
        # In logarithms: a probability of 1e-12 to the power of -4 is no float32, and only ratios matter.
        logs_B = -exponent * np.log(self.num_open * self.probabilities_B)
        return np.exp(logs_B - logs_B.max(initial=-np.inf)).astype(np.float32)


@runtime_checkable
class ReplayTrainer(Trainer, Protocol):
    """A ``Trainer`` of units: ``prepare`` gets ``ReplayUnits``; weights of a ``Response`` are in their order."""

    def priorities(self) -> NDArray[np.float32] | None:
        """New priorities of the units of the newest update, in their order (B,); None leaves the old ones.

        Finite and not negative; the store refuses and counts others. Of several ranks rank 0 gives all of them.
        """
        ...


def priorities_of(trainer: Trainer) -> NDArray[np.float32] | None:
    """``ReplayTrainer.priorities`` of a trainer that has them."""
    return trainer.priorities() if isinstance(trainer, ReplayTrainer) else None
