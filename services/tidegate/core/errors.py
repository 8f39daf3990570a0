"""The one error tree.

Every error contains what happened, why, and what to do next. Each class carries the gRPC status name it travels as and
whether trying the same call again can help; one interceptor in ``runtime.rpc`` translates both ways.
"""

from typing import ClassVar

from tidegate.core.utf8_text import encodable


class TidegateError(Exception):
    """Root of every error Tidegate raises on purpose.

    ``what`` is the fact, ``why`` the cause as far as it is known, ``fix`` the next step for the reader.
    """

    status: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False
    # The shortest pause (seconds) before a retry that the peer asked for; an instance may set it.
    retry_after_s: float = 0.0

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        """Store the three parts separately for callers that render them, and as texts that any message takes."""
        what, why, fix = encodable(what), encodable(why), encodable(fix)
        super().__init__(what, why, fix)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        """One sentence a part, in the order what, why, next."""
        parts = [part.strip().rstrip(".") for part in (self.what, self.why, self.fix) if part.strip()]
        return ". ".join(parts) + "." if parts else type(self).__name__


class ConfigError(TidegateError):
    """A run file, flag or setting is wrong; nothing was started."""

    status = "INVALID_ARGUMENT"


class RecordError(TidegateError):
    """Bytes that came over the wire are no valid record: truncated, malformed, or with values no policy can produce."""

    status = "INVALID_ARGUMENT"


class PayloadTooLargeError(TidegateError):
    """A message would exceed the limit of its stream or of the broker; it was not sent.

    Its status is not that of backpressure, which a caller would answer by sending the same again.
    """

    status = "OUT_OF_RANGE"


class BackpressureError(TidegateError):
    """A bounded queue or stream is full; the same call may succeed once its reader caught up."""

    status = "RESOURCE_EXHAUSTED"
    retryable = True


class UnknownVersionError(TidegateError):
    """A policy version or lineage that was never published, or that is no longer kept."""

    status = "NOT_FOUND"


class NotFoundError(TidegateError):
    """A trajectory, batch or session that does not (or no longer) exist."""

    status = "NOT_FOUND"


class ConflictError(TidegateError):
    """Another process acted first: a second learner, a lease that ended, a version published twice with other bytes."""

    status = "ABORTED"


class UnauthenticatedError(TidegateError):
    """A call came without a credential, or with one that is not accepted (any more).

    Retryable, because credentials are rotated while services run.
    """

    status = "UNAUTHENTICATED"
    retryable = True


class PermissionDeniedError(TidegateError):
    """The caller is known, and its role may not do this."""

    status = "PERMISSION_DENIED"


class StaleFolderError(TidegateError):
    """A data folder belongs to another run, or was written by an incompatible version."""

    status = "FAILED_PRECONDITION"


class FolderInUseError(ConfigError):
    """Another process works in the run folder."""


class CorruptionError(TidegateError):
    """Bytes on disk or on the wire do not match their digest."""

    status = "DATA_LOSS"


class UnavailableError(TidegateError):
    """A service or the broker did not answer in time."""

    status = "UNAVAILABLE"
    retryable = True


class DeadlineError(UnavailableError):
    """A wait ended at its deadline."""

    status = "DEADLINE_EXCEEDED"
