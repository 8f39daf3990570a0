"""Log lines of what fails again and again, such as a call that a peer repeats every few milliseconds."""

import time
from collections.abc import Callable

import structlog

# Repeated failures must not fill the disk with tracebacks.
LOG_PERIOD_S = 10.0


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
        self._clock_s = clock_s
        self._next_s: dict[str, float] = {}
        self._num_left_out: dict[str, int] = {}

    def __call__(self, source: str, error: Exception) -> None:
        """Log the failure, unless the source had a line within the period."""
        now_s = self._clock_s()
        if now_s < self._next_s.get(source, now_s):
            self._num_left_out[source] = self._num_left_out.get(source, 0) + 1
            return
        self._next_s[source] = now_s + LOG_PERIOD_S
        num_left_out = self._num_left_out.pop(source, 0)
        fields = {self._label: source, "left_out": num_left_out, "error": str(error), "exc_info": error}
        self._log.error(self._event, **fields)
