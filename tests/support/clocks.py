"""Clocks that skip or hold time, and spans between wall-clock stamps beside waits, which follow the monotonic clock."""

from tidegate.runtime.clock import SystemClock

# The system slews its wall clock by up to 500 ppm towards the true time: a wait of 1.5 s had stamps 1.499993 s apart.
SLEW_SHARE_MAX = 0.01


def wall_clock_s(waited_s: float) -> float:
    """The shortest span that two stamps around a wait of ``waited_s`` may have."""
    return waited_s * (1.0 - SLEW_SHARE_MAX)


class SkippingClock(SystemClock):
    """The machine's clocks; the test may let time pass at once."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.skipped_s


class HeldClock(SystemClock):
    """Both clocks are held at ``now``, which the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic_s(self) -> float:
        return self.now

    def now_s(self) -> float:
        return self.now
