"""What goes wrong at the broker without anybody's call failing: refused operations, and messages that code fails at.

The broker drops what a user may not publish or subscribe to, and tells the connection; the client library drops the
exception of a message handler. Both are counted here, which the lifecycle reports, and logged once in a while.
"""

from collections.abc import Callable
from typing import Literal, TypeVar

import structlog

from tidegate.core.errors import RecordError, TidegateError
from tidegate.runtime.failure_log import FailureLog, LogPeriod
from tidegate.wire.subjects import stream_of_subject

T = TypeVar("T")
Refused = Literal["publish", "subscribe", "connect"]
# Parts of the broker's errors, in lower case: a user publishes or subscribes where it may not; it is no user.
_VIOLATION, _SUBSCRIPTION, _NO_USER = "permissions violation", "subscription to", "authorization violation"
# One line of the log for each kind of refused operation; the others are counted. A service repeats what was refused.
LOG_PERIOD_S = 60.0


class BusFailures:
    """Counters of one connection, from 0: what the broker refused by operation, and failed messages by stream."""

    def __init__(self, *, name: str = "bus", user: str = "") -> None:
        """``name``: of the process, for its log. ``user``: at the broker."""
        self.refused: dict[Refused, int] = {"publish": 0, "subscribe": 0, "connect": 0}
        self.messages: dict[str, int] = {}
        self._user = user
        self._log = structlog.get_logger(name)
        self._period = LogPeriod()
        self._log_failure = FailureLog(name, event="message_handler_failed", label="subject")

    def note_error(self, error: Exception) -> Refused | None:
        """Count and log an error of the connection, if it is a refusal, and return of what.

        The client repeats all others by itself.
        """
        operation = refused_operation(str(error))
        if operation is None:
            return None
        self.refused[operation] += 1
        left_out = self._period.left_out(operation, period_s=LOG_PERIOD_S)
        if left_out is not None:
            self._log.warning(
                "broker_refused", operation=operation, user=self._user, error=str(error), left_out=left_out
            )
        return operation

    def note_message(self, subject: str, error: Exception) -> None:
        """Count and log a message at which the code of this service raised: a defect of the service.

        ``subject``: of a subscription or a consumer, which are few.
        """
        stream = stream_of_subject(subject)
        self.messages[stream] = self.messages.get(stream, 0) + 1
        self._log_failure(subject, error)

    def read(self, subject: str, decode: Callable[[], T]) -> T:
        """What ``decode`` makes of a message: a defect of it, too, makes the message unreadable, and ends no process.

        Raises:
            RecordError: the message is none that this service can read.
            MemoryError: there was none; the message may be readable.
        """
        try:
            return decode()
        except (TidegateError, MemoryError):
            raise
        except Exception as error:
            self.note_message(subject, error)
            raise RecordError(
                f"A message of {subject} cannot be read: {type(error).__name__}",
                why="this is a defect of the service",
                fix="its log has the traceback under message_handler_failed",
            ) from error


def refused_operation(text: str) -> Refused | None:
    """The operation that an error of the broker is about; None for errors that are no refusal."""
    lowered = text.lower()
    if _NO_USER in lowered:
        return "connect"
    if _VIOLATION in lowered:
        return "subscribe" if _SUBSCRIPTION in lowered else "publish"
    return None
