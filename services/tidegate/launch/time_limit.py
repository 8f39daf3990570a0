"""The time limit of a run (``--for``), by the monotonic clock."""

import time
from collections.abc import Callable


class TimeLimit:
    """Counts from the start of the command, by the monotonic clock: a corrected wall clock ends no run."""

    def __init__(
        self, limit_s: float | None, *, elapsed_s: float, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``limit_s``: None for none. ``elapsed_s``: since the command began."""
        self._monotonic_s = monotonic_s
        self._ends_s = None if limit_s is None else monotonic_s() - max(0.0, elapsed_s) + limit_s

    def is_reached(self) -> bool:
        """Whether the time is over."""
        return self._ends_s is not None and self._monotonic_s() >= self._ends_s
