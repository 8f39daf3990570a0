"""Keeps the pace of replay (``core.samples_per_insert``): who waits for whom, and since when."""

import math
from typing import Literal

from tidegate.core.samples_per_insert import (
    MAY_PROCEED,
    PaceDecision,
    ReplayFlow,
    ReplayPace,
    WaitFor,
    decide_insert,
    decide_sample,
    owed,
)


class Limiter:
    """Counts units inserted and sampled, and remembers the newest decision of either side.

    ``sampled`` includes batches that a learner holds and has not committed; releasing one takes it back.
    """

    def __init__(self, pace: ReplayPace, *, insert_units: int) -> None:
        """``insert_units``: the most units one trajectory brings."""
        self.pace = pace
        self.inserted = 0
        self.sampled = 0
        self._insert_units = insert_units
        self._insert: PaceDecision = MAY_PROCEED
        self._sample: PaceDecision = MAY_PROCEED

    def trajectories_allowed(self, *, drawable: float, most: int) -> int:
        """How many trajectories may be inserted now, at most ``most``."""
        flow = self._flow(drawable)
        self._insert = decide_insert(self.pace, flow, count=self._insert_units)
        if isinstance(self._insert, WaitFor):
            return 0
        if self.pace.samples_per_insert == 0.0:
            return most
        room = self.pace.middle() + self.pace.slack - owed(self.pace, flow)
        fitting = math.floor(room / (self.pace.samples_per_insert * self._insert_units))
        return max(1, min(most, fitting))

    def may_sample(self, *, count: int, drawable: float) -> bool:
        """Whether a batch of ``count`` units may be drawn now."""
        self._sample = decide_sample(self.pace, self._flow(drawable), count=count)
        return not isinstance(self._sample, WaitFor)

    @property
    def waiting(self) -> Literal["", "actors", "learner"]:
        """The side that waits, as of the newest decisions; empty when neither does."""
        if isinstance(self._sample, WaitFor):
            return "learner"
        return "actors" if isinstance(self._insert, WaitFor) else ""

    def sentence(self) -> str:
        """Who waits for whom and why; empty when neither side does."""
        match self._sample, self._insert:
            case WaitFor(reason=reason), _:
                return f"the learner waits for actors: {reason}"
            case _, WaitFor(reason=reason):
                return f"actors wait for the learner: {reason}"
            case _:
                return ""

    def _flow(self, drawable: float) -> ReplayFlow:
        return ReplayFlow(inserted=self.inserted, sampled=self.sampled, drawable=drawable)
