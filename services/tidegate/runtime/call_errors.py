"""How a served call that raised ends: with a status of the error tree, and a log line where the service is at fault."""

from collections.abc import Callable
from typing import TypeAlias

from tidegate.core.errors import TidegateError, UnavailableError

# Told of each call that ended by a defect of the service: full method name and error. It never raises.
OnFailure: TypeAlias = Callable[[str, Exception], None]


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
