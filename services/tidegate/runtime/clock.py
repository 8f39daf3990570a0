"""The one place that reads a clock, so that tests and simulations can replace it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations."""

    def now_s(self) -> float:
        """Seconds since the epoch; travels in records and may step."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back; for waits and rates."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()
