"""Log lines of what fails again and again, such as a call that a peer repeats every few milliseconds."""

import time
from collections.abc import Callable

import structlog

# Repeated failures must not fill the disk with tracebacks.
LOG_PERIOD_S = 10.0


class LogPeriod:
    """Lets one line for each key pass in a period; bounded by the number of keys, which its owner knows."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._written_at_s: dict[str, float] = {}
        self._num_left_out: dict[str, int] = {}

    def left_out(self, key: str, *, period_s: float) -> int | None:
        """How many lines were left out since the last one of this key; None where this one is left out as well."""
        now_s = self._clock_s()
        if now_s - self._written_at_s.get(key, float("-inf")) < period_s:
            self._num_left_out[key] = self._num_left_out.get(key, 0) + 1
            return None
        self._written_at_s[key] = now_s
        return self._num_left_out.pop(key, 0)


class ProblemLog:
    """Logs what keeps a loop from its work: a line when it changes, and none while it stays."""

    def __init__(self, log: structlog.stdlib.BoundLogger, event: str) -> None:
        self._log = log
        self._event = event
        self._problem = ""

    def note(self, problem: str) -> None:
        """What it is now; empty for none."""
        if problem and problem != self._problem:
            self._log.warning(self._event, error=problem)
        self._problem = problem


class FailureLog:
    """Logs failures with their traceback: one line for each source in ``LOG_PERIOD_S``, with those left out.

    ``event``: what failed. ``label``: the field that names the source, such as the method of a call. Bounded by the
    number of sources, which the code that owns this knows.
    """

    def __init__(
        self, logger: str, *, event: str, label: str, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = structlog.get_logger(logger)
        self._event = event
        self._label = label
        self._period = LogPeriod(clock_s=clock_s)

    def __call__(self, source: str, error: Exception) -> None:
        """Log the failure, unless the source had a line within the period."""
        left_out = self._period.left_out(source, period_s=LOG_PERIOD_S)
        if left_out is None:
            return
        fields = {self._label: source, "left_out": left_out, "error": str(error), "exc_info": error}
        self._log.error(self._event, **fields)
