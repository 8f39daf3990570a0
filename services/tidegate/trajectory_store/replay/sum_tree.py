"""A sum tree in one flat array: draws leaves in proportion to their weights, one vectorised pass a level.

Node 1 is the root, the children of node ``i`` are ``2 i`` and ``2 i + 1``, leaves are the last level. A parent is
always computed from its children, never changed by a difference, so rounding does not accumulate. With a million leaves
512 of them are put or drawn in about 0.2 ms of CPU.

Shapes: B leaves of one call.
"""

import numpy as np
from numpy.typing import NDArray

# Weights of float64 add up exactly enough: over a million leaves the relative error of the total is below 1e-13.
WEIGHT = np.float64


class SumTree:
    """Weights of ``num_leaves`` leaves, zero at first. A leaf of weight zero is never drawn."""

    def __init__(self, num_leaves: int) -> None:
        """16 bytes for each leaf, rounded up to a power of two."""
        assert num_leaves > 0
        self._depth = (num_leaves - 1).bit_length()
        self._first_leaf = 1 << self._depth
        self._nodes: NDArray[np.float64] = np.zeros(2 * self._first_leaf, WEIGHT)
        self.num_leaves = num_leaves

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self._nodes.nbytes

    def weights(self, leaves_B: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weights of these leaves."""
        return self._nodes[leaves_B + self._first_leaf]

    def put(self, leaves_B: NDArray[np.int64], weights_B: NDArray[np.float64]) -> None:
        """Set weights, finite and not negative; of a leaf that is named twice the last one counts."""
        if not len(leaves_B):
            return
        nodes = self._nodes
        places = leaves_B + self._first_leaf
        nodes[places] = weights_B
        for _ in range(self._depth):
            places = places >> 1
            left = places << 1
            # Siblings compute their parent twice, which costs less than finding them.
            nodes[places] = nodes[left] + nodes[left + 1]

    def put_range(self, start: int, weights_B: NDArray[np.float64]) -> None:
        """Set the weights of ``len(weights_B)`` neighbours from ``start`` on: a third of the cost of ``put``."""
        if not len(weights_B):
            return
        nodes = self._nodes
        first = start + self._first_leaf
        last = first + len(weights_B) - 1
        nodes[first : last + 1] = weights_B
        for _ in range(self._depth):
            first, last = first >> 1, last >> 1
            children = nodes[2 * first : 2 * last + 2]
            nodes[first : last + 1] = children[::2] + children[1::2]

    def draw(self, uniforms_B: NDArray[np.float64]) -> NDArray[np.int64]:
        """One leaf for each number in [0, 1), each drawn with its weight over the total.

        The total must be positive.
        """
        nodes = self._nodes
        assert nodes[1] > 0.0, "there is nothing to draw"
        rest = uniforms_B * nodes[1]
        places = np.ones(len(uniforms_B), np.int64)
        for _ in range(self._depth):
            places = places << 1
            left = nodes[places]
            # Rounding may leave a rest at the right end of a node whose right child is empty.
            goes_right = (rest >= left) & (nodes[places + 1] > 0.0)
            rest = rest - left * goes_right
            places += goes_right
        return places - self._first_leaf
