"""Logprobs and entropies with their gradient written out, under numpy: for learners of small networks on the CPU.

The formulas of ``ActionDistribution.logprobs_and_entropy`` differentiated by hand. Torch's graph of the same costs
several times as much for some hundred rows, nearly all of it torch's cost of an operation.

Shapes: B rows, P outputs of the distribution.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Differentiated:
    """Of the actions taken: ``logprobs_B`` and ``entropy_B``.

    ``by_outputs``: from a loss' gradients by these two, (B,) each, to that by the outputs (B, P), the chain rule.
    """

    logprobs_B: Rows
    entropy_B: Rows
    by_outputs: Callable[[Rows, Rows], Rows]


@runtime_checkable
class DifferentiatedDistribution(Protocol):
    """An ``ActionDistribution`` that differentiates itself."""

    def differentiated(self, outputs_BP: Rows, actions: NDArray[Any]) -> Differentiated:
        """For outputs (B, P) and recorded actions (B, *action_shape)."""
        ...
