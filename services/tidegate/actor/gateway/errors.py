"""The gateway's refusals as errors of the error tree and as error objects of the OpenAI API."""

from typing import Any, ClassVar

from tidegate.core.errors import (
    BackpressureError,
    ConflictError,
    NotFoundError,
    PayloadTooLargeError,
    RecordError,
    TidegateError,
    UnavailableError,
)

RETRY_AFTER_S = 1


class RefusedCallError(RecordError):
    """A call asks for an unsupported or invalid feature. ``param`` is the field, ``code`` the API's word for it."""

    def __init__(self, what: str, *, param: str = "", code: str = "", why: str = "", fix: str = "") -> None:
        """``code`` may stay empty, as in the API itself."""
        super().__init__(what, why=why, fix=fix)
        self.param = param
        self.code = code


class KeyRefusedError(TidegateError):
    """A wrong key, or one of an ended episode."""

    status: ClassVar[str] = "UNAUTHENTICATED"


class UnknownModelError(NotFoundError):
    """An agent asks for a model that is not served here."""


# The first row that matches applies; an error without a row is a defect of the gateway.
_STATUSES: tuple[tuple[type[TidegateError], int, str], ...] = (
    (KeyRefusedError, 401, "authentication_error"),
    (NotFoundError, 404, "not_found_error"),
    (ConflictError, 409, "conflict_error"),
    (PayloadTooLargeError, 413, "invalid_request_error"),
    (RecordError, 400, "invalid_request_error"),
    (BackpressureError, 429, "rate_limit_error"),
    (UnavailableError, 503, "server_error"),
)


def http_status(error: TidegateError) -> int:
    """The status a client gets."""
    return _entry(error)[0]


def error_body(error: TidegateError) -> dict[str, Any]:
    """The API's error object."""
    refused = isinstance(error, RefusedCallError)
    return {
        "error": {
            "message": str(error),
            "type": _entry(error)[1],
            "param": (error.param or None) if refused else None,
            "code": (error.code or None) if refused else _code(error),
        }
    }


def error_headers(error: TidegateError) -> dict[str, str]:
    """The Retry-After header, where a retry can succeed."""
    return {"Retry-After": str(RETRY_AFTER_S)} if error.retryable else {}


def _entry(error: TidegateError) -> tuple[int, str]:
    for kind, status, name in _STATUSES:
        if isinstance(error, kind):
            return status, name
    return 500, "server_error"


def _code(error: TidegateError) -> str | None:
    if isinstance(error, KeyRefusedError):
        return "invalid_api_key"
    if isinstance(error, UnknownModelError):
        return "model_not_found"
    return "rate_limit_exceeded" if isinstance(error, BackpressureError) else None
