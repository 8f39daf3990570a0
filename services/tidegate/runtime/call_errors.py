"""How a served call that raised ends: with a status of the error tree, and a log line where the service is at fault."""

from collections.abc import Callable
from typing import TypeAlias

from tidegate.core.errors import TidegateError, UnavailableError

# Of a call's trailing metadata, which a client refuses from 8 KiB on: it would see RESOURCE_EXHAUSTED in place of the
# error, take it for backpressure and repeat the call for ever (measured).
DETAILS_BYTES_MAX = 6 * 1024
CUT = " ... "

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


def details_of(error: TidegateError) -> str:
    """The text that a call is answered with: all of it, or as much of its begin and its end as travels."""
    text = str(error).encode(errors="replace").decode()
    if 12 * len(text) <= DETAILS_BYTES_MAX or sum(map(_sent_bytes, text)) <= DETAILS_BYTES_MAX:
        return text
    # What to do is at the end.
    tail = _fitting(text[::-1], DETAILS_BYTES_MAX // 4)
    head = _fitting(text, DETAILS_BYTES_MAX - DETAILS_BYTES_MAX // 4 - len(CUT))
    return text[:head] + CUT + text[len(text) - tail :]


def _fitting(text: str, num_bytes: int) -> int:
    """How many characters from the first on travel in so many bytes."""
    for position, character in enumerate(text):
        num_bytes -= _sent_bytes(character)
        if num_bytes < 0:
            return position
    return len(text)


def _sent_bytes(character: str) -> int:
    """Of one character in percent-encoding."""
    return 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode())
