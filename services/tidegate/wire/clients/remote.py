"""Shared by all clients: a deadline for each call, and remote failures as errors of ``core``."""

from collections.abc import Generator
from contextlib import contextmanager

import grpc

from tidegate.core import errors

DEADLINE_S = 10.0
# Reading a whole ledger or journal, which keeps ten million rows and more: of a million, reading takes a few seconds,
# and verifying half a minute.
AUDIT_DEADLINE_S = 3600.0
# Of a stream, beyond the time that its bytes take over the slowest network that is worth a run.
TRANSFER_DEADLINE_S = 600.0
SLOWEST_BYTES_PER_S = 1_000_000.0
# Added to a long poll's own wait before the call's deadline ends it.
POLL_GRACE_S = 5.0

_BY_STATUS: dict[grpc.StatusCode, type[errors.TidegateError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.RecordError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.ABORTED: errors.ConflictError,
    grpc.StatusCode.OUT_OF_RANGE: errors.PayloadTooLargeError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.BackpressureError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.StaleFolderError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    grpc.StatusCode.DATA_LOSS: errors.CorruptionError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
}

# The text of grpc.aio, under INTERNAL, for a message sent into a call that the peer, or its death, has just ended
# (grpc/grpc#36066).
_SENT_INTO_AN_ENDED_CALL = "Internal error from Core"
# Its text, under RESOURCE_EXHAUSTED, for a message beyond `runtime.rpc.MESSAGE_BYTES_MAX`, found by either side.
_TOO_LARGE = "message larger than max"


def transfer_deadline_s(num_bytes: int) -> float:
    """The deadline of a transfer: one of its own for each size, or a large one would be repeated for ever."""
    return TRANSFER_DEADLINE_S + num_bytes / SLOWEST_BYTES_PER_S


@contextmanager
def remote_errors(service: str) -> Generator[None, None, None]:
    """Translate a gRPC failure into the error tree, naming the service that failed."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        details = error.details() or error.code().name
        kind = _BY_STATUS.get(error.code(), errors.TidegateError)
        if error.code() is grpc.StatusCode.INTERNAL and details.startswith(_SENT_INTO_AN_ENDED_CALL):
            kind = errors.UnavailableError
        elif error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
            kind = errors.PayloadTooLargeError
        raise kind(f"{service}: {details}") from error
