"""How a served call that raised ends: with a status of the error tree, and a log line where the service is at fault."""

import time
from collections.abc import Callable
from typing import TypeAlias

import structlog

from tidegate.core.errors import TidegateError, UnavailableError

# A peer that repeats a failing call every few milliseconds must not fill the disk with tracebacks.
LOG_PERIOD_S = 10.0

log = structlog.get_logger("rpc")

# Told of each call that ended by a defect of the service: full method name and error. It never raises.
OnFailure: TypeAlias = Callable[[str, Exception], None]


class FailureLog:
    """Logs failed calls with their traceback: one line for each method in ``LOG_PERIOD_S``, with those left out.

    Bounded by the number of methods that a server has.
    """

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._next_s: dict[str, float] = {}
        self._num_left_out: dict[str, int] = {}

    def __call__(self, method: str, error: Exception) -> None:
        """Log the failure, unless the method had a line within the period."""
        now_s = self._clock_s()
        if now_s < self._next_s.get(method, now_s):
            self._num_left_out[method] = self._num_left_out.get(method, 0) + 1
            return
        self._next_s[method] = now_s + LOG_PERIOD_S
        num_left_out = self._num_left_out.pop(method, 0)
        log.error("call_failed", method=method, left_out=num_left_out, error=str(error), exc_info=error)


def answer_to(error: Exception, method: str, *, on_failure: OnFailure) -> TidegateError:
    """The error that a call is answered with; anything that no caller caused goes to ``on_failure`` first.

    The text of an unexpected exception stays in the log: it may hold what the caller must not read. Want of memory is
    no defect: the caller repeats such a call.
    """
    if isinstance(error, TidegateError):
        if error.status == TidegateError.status:
            on_failure(method, error)
        return error
    on_failure(method, error)
    if isinstance(error, MemoryError):
        return UnavailableError(
            f"{method} found no memory",
            why="the process has reached its memory limit",
            fix="the same call may succeed later; give the service more memory",
        )
    return TidegateError(
        f"{method} failed by a {type(error).__name__}",
        why="this is a defect of the service",
        fix="its log has the traceback under call_failed",
    )
