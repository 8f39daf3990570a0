"""Which units may be drawn now, how often each was used, and their weights.

A unit is open while its window is complete, its page is inside the staleness budget, and it was used less often than
``uses_max``. Uses count gradient steps of the surviving lineage; a batch that a learner holds reserves its uses until
it is committed or released.

Shapes: L = slots times units of a page (leaves), B units of one call.
"""

import math

import numpy as np
from numpy.typing import NDArray

from tidegate.trajectory_store.replay.selectors import (
    PRIORITY_MIN,
    SelectorSettings,
    usable_priorities,
)
from tidegate.trajectory_store.replay.sum_tree import SumTree

# A draw of more than remains of some units repeats itself for the rest; each round closes at least one unit.
_ROUNDS_MAX = 10_000


class Offers:
    """The leaves of all slots. ``priorities_L`` is the ring that a restart finds again."""

    def __init__(
        self,
        priorities_L: NDArray[np.float32],
        *,
        units: int,
        settings: SelectorSettings,
        uses_max: int,
    ) -> None:
        """``units``: leaves of a slot. Nothing is open at first."""
        num_leaves = len(priorities_L)
        self._units = units
        self._settings = settings
        self._uses_max = uses_max
        self._priorities_L = priorities_L
        self._complete_L = np.zeros(num_leaves, np.bool_)
        self._was_complete_L = np.zeros(num_leaves, np.bool_)
        self._open_L = np.zeros(num_leaves, np.bool_)
        self._uses_L = np.zeros(num_leaves, np.uint32)
        # Of units with a limit alone: uses that learners hold, and samples left while open.
        self._reserved_L = np.zeros(num_leaves if uses_max else 0, np.uint32)
        self._left_L = np.zeros_like(self._reserved_L)
        self._arrivals_P = np.zeros(num_leaves // units, np.int64)
        self._hidden_P = np.zeros(num_leaves // units, np.bool_)
        self._reference = 0
        self._tree = SumTree(num_leaves)
        self._priority_max = 1.0
        self.num_open = 0
        self._samples_left = 0

    @property
    def drawable(self) -> float:
        """How many samples could be drawn now."""
        if not self._uses_max:
            return math.inf if self.num_open else 0
        return self._samples_left

    @property
    def num_bytes(self) -> int:
        """Bytes of memory, the priorities' ring not included."""
        flags = self._complete_L.nbytes + self._was_complete_L.nbytes + self._open_L.nbytes
        return self._tree.num_bytes + flags + self._uses_L.nbytes + 2 * self._reserved_L.nbytes

    # -- pages -----------------------------------------------------------------------------------------------------

    def begin_page(self, slot: int, *, arrival: int, first_priorities_U: NDArray[np.float32] | None) -> int:
        """A new page in a slot; units without a priority of their own get the largest so far (Schaul et al. 2015).

        Returns how many first priorities were refused because they are not finite.
        """
        place = self._place(slot)
        num_refused = 0
        self._priorities_L[place] = self._priority_max
        if first_priorities_U is not None:
            usable_U = usable_priorities(first_priorities_U)
            num_refused = int(len(usable_U) - np.count_nonzero(usable_U))
            self._priorities_L[place][usable_U] = np.maximum(first_priorities_U[usable_U], PRIORITY_MIN)
        self.resume_page(slot, arrival=arrival)
        return num_refused

    def resume_page(self, slot: int, *, arrival: int) -> None:
        """A page that a restart found: its priorities stay, but for those that a crash left unusable."""
        place = self._place(slot)
        priorities_U = self._priorities_L[place]
        priorities_U[~usable_priorities(priorities_U) | (priorities_U <= 0.0)] = self._priority_max
        self._priority_max = max(self._priority_max, float(priorities_U.max()))
        self._complete_L[place] = self._was_complete_L[place] = False
        self._uses_L[place] = 0
        if self._uses_max:
            self._reserved_L[place] = 0
        self._arrivals_P[slot] = arrival
        self._hidden_P[slot] = False
        if self._settings.must_move(reference=self._reference, newest=arrival):
            self._reference = arrival
            for other in range(len(self._arrivals_P)):
                self._weigh_page(other)
        self._weigh_page(slot)

    def set_complete(self, slot: int, complete_U: NDArray[np.bool_]) -> int:
        """Which units of a page are complete; returns how many are so for the first time."""
        place = self._place(slot)
        num_first = int(np.count_nonzero(complete_U & ~self._was_complete_L[place]))
        self._was_complete_L[place] |= complete_U
        self._complete_L[place] = complete_U
        self._weigh_page(slot)
        return num_first

    def hide_page(self, slot: int) -> None:
        """A page left the staleness budget: its units are not drawn any more."""
        self._hidden_P[slot] = True
        self._weigh_page(slot)

    def show_page(self, slot: int) -> None:
        """A page may be inside the budget again, because another lineage was opened."""
        if self._hidden_P[slot]:
            self._hidden_P[slot] = False
            self._weigh_page(slot)

    def end_page(self, slot: int) -> None:
        """A page is evicted."""
        self._complete_L[self._place(slot)] = False
        self._weigh_page(slot)

    def is_hidden(self, slot: int) -> bool:
        """Whether ``hide_page`` was called."""
        return bool(self._hidden_P[slot])

    # -- units -----------------------------------------------------------------------------------------------------

    def draw(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """``count`` leaves with replacement, and the probability of each when it was drawn.

        No more draws of a unit than its uses allow: what is drawn beyond them is drawn again among the others. The
        caller reserves the leaves, and has asked ``drawable``.
        """
        tree = self._tree
        if not self._uses_max:
            leaves_B = tree.draw(rng.random(count))
            return leaves_B, tree.weights(leaves_B) / tree.total
        drawn: list[NDArray[np.int64]] = []
        probabilities: list[NDArray[np.float64]] = []
        missing = count
        touched: list[NDArray[np.int64]] = []
        for _ in range(_ROUNDS_MAX):
            leaves_M = tree.draw(rng.random(missing))
            shares_M = tree.weights(leaves_M) / tree.total
            kept_M = _occurrence(leaves_M) < self._left(leaves_M)
            drawn.append(leaves_M[kept_M])
            probabilities.append(shares_M[kept_M])
            np.add.at(self._reserved_L, leaves_M[kept_M], 1)
            touched.append(leaves_M)
            missing -= int(np.count_nonzero(kept_M))
            if not missing:
                break
            self._weigh(np.unique(leaves_M))
        assert not missing, "more was asked for than can be drawn"
        leaves_B = np.concatenate(drawn)
        np.subtract.at(self._reserved_L, leaves_B, 1)
        self._weigh(np.unique(np.concatenate(touched)))
        return leaves_B, np.concatenate(probabilities)

    def are_complete(self, leaves_B: NDArray[np.int64]) -> bool:
        """Whether all of these are complete."""
        return bool(self._complete_L[leaves_B].all())

    def shares(self, leaves_B: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probability with which each would be drawn if it were open, beside what is open."""
        weights_B = self._settings.weights(
            self._priorities_L[leaves_B], self._arrivals_P[leaves_B // self._units], reference=self._reference
        )
        return weights_B / max(self._tree.total, float(weights_B.max(initial=0.0)))

    def reserve(self, leaves_B: NDArray[np.int64]) -> None:
        """A learner holds these."""
        if self._uses_max:
            np.add.at(self._reserved_L, leaves_B, 1)
            self._weigh(np.unique(leaves_B))

    def unreserve(self, leaves_B: NDArray[np.int64]) -> None:
        """A learner does not hold these any more."""
        if self._uses_max:
            np.subtract.at(self._reserved_L, leaves_B, 1)
            self._weigh(np.unique(leaves_B))

    def use(self, leaves_B: NDArray[np.int64]) -> None:
        """A gradient step used these."""
        np.add.at(self._uses_L, leaves_B, 1)
        if self._uses_max:
            self._weigh(np.unique(leaves_B))

    def set_uses(self, slot: int, uses_U: NDArray[np.uint32]) -> None:
        """The uses of a page's units, counted from the ledger; nothing of it is held."""
        place = self._place(slot)
        self._uses_L[place] = uses_U
        if self._uses_max:
            self._reserved_L[place] = 0
        self._weigh_page(slot)

    def uses(self, slot: int) -> NDArray[np.uint32]:
        """The uses of a page's units."""
        return self._uses_L[self._place(slot)]

    def set_priorities(self, leaves_B: NDArray[np.int64], priorities_B: NDArray[np.float32]) -> None:
        """Set usable priorities; of a unit that is named twice the last one counts."""
        self._priorities_L[leaves_B] = np.maximum(priorities_B, PRIORITY_MIN)
        if len(priorities_B):
            self._priority_max = max(self._priority_max, float(priorities_B.max()))
        if self._settings.selector == "prioritised":
            self._weigh(np.unique(leaves_B) if self._uses_max else leaves_B)

    # -- weights ---------------------------------------------------------------------------------------------------

    def _place(self, slot: int) -> slice:
        return slice(slot * self._units, (slot + 1) * self._units)

    def _left(self, leaves_B: NDArray[np.int64]) -> NDArray[np.int64]:
        taken_B = self._uses_L[leaves_B].astype(np.int64) + self._reserved_L[leaves_B]
        return np.maximum(self._uses_max - taken_B, 0)

    def _weigh(self, leaves_B: NDArray[np.int64]) -> None:
        """Compute the weights of leaves again; where uses are limited, each is named once."""
        slots_B = leaves_B // self._units
        open_B = self._complete_L[leaves_B] & ~self._hidden_P[slots_B]
        if self._uses_max:
            left_B = self._left(leaves_B)
            open_B &= left_B > 0
            # Closed leaves have no samples left, so that only what is open is counted before and after.
            self._count_left(leaves_B, left_B * open_B)
        weights_B = self._settings.weights(
            self._priorities_L[leaves_B], self._arrivals_P[slots_B], reference=self._reference
        )
        self._tree.put(leaves_B, weights_B * open_B)
        self._set_open(leaves_B, open_B)

    def _weigh_page(self, slot: int) -> None:
        place = self._place(slot)
        open_U = self._complete_L[place] & ~self._hidden_P[slot]
        if self._uses_max:
            leaves_U = np.arange(place.start, place.stop, dtype=np.int64)
            left_U = self._left(leaves_U)
            open_U &= left_U > 0
            self._count_left(place, left_U * open_U)
        arrivals_U = np.full(self._units, self._arrivals_P[slot])
        weights_U = self._settings.weights(self._priorities_L[place], arrivals_U, reference=self._reference)
        self._tree.put_range(place.start, weights_U * open_U)
        self._set_open(place, open_U)

    def _set_open(self, where: NDArray[np.int64] | slice, open_B: NDArray[np.bool_]) -> None:
        before = np.count_nonzero(self._open_L[where])
        self._open_L[where] = open_B
        self.num_open += int(np.count_nonzero(self._open_L[where]) - before)

    def _count_left(self, where: NDArray[np.int64] | slice, left_B: NDArray[np.int64]) -> None:
        self._samples_left += int(left_B.sum() - self._left_L[where].sum())
        self._left_L[where] = left_B


def _occurrence(leaves_B: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many equal leaves precede each one."""
    order_B = np.argsort(leaves_B, kind="stable")
    ordered_B = leaves_B[order_B]
    is_first_B = np.concatenate(([True], ordered_B[1:] != ordered_B[:-1]))
    starts_B = np.maximum.accumulate(np.where(is_first_B, np.arange(len(leaves_B)), 0))
    occurrence_B = np.empty(len(leaves_B), np.int64)
    occurrence_B[order_B] = np.arange(len(leaves_B)) - starts_B
    return occurrence_B
