"""Authentication and authorisation of calls at a server, before a request is read.

The credential travels as the metadata ``authorization: Bearer <token>``; ``wire.call_permissions`` says which role may
call which method. A refused call costs its server no decoding: its messages are never read.
"""

from __future__ import annotations  # gRPC's classes are generic for the type checker only

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import grpc
import structlog

from tidegate.core.errors import PermissionDeniedError, TidegateError, UnauthenticatedError
from tidegate.runtime.call_credentials import AcceptedTokens
from tidegate.runtime.failure_log import LogPeriod
from tidegate.wire.call_permissions import AUTHORIZATION, SCHEME, Role, callers_of

# One line of the log for each method, caller and reason in this time; the others are counted.
LOG_PERIOD_S = 60.0

log = structlog.get_logger("rpc")

Metadata = Iterable[tuple[str, str | bytes]]


def authorise(
    accepted: AcceptedTokens, service: str, method: str, metadata: Metadata
) -> UnauthenticatedError | PermissionDeniedError | None:
    """Why this caller may not make this call; None when it may."""
    callers = callers_of(service, method)
    if callers is None:  # PUBLIC
        return None
    token = _token_in(metadata)
    if not token:
        return UnauthenticatedError(
            f"{method} was called without a credential",
            why=f"the call has no `{AUTHORIZATION}: {SCHEME}<token>` in its metadata",
            fix="call through the command line of the run's owner, or send the token of a role that may call it",
        )
    role = accepted.role_of(token)
    if role is None:
        return UnauthenticatedError(
            f"{method} was called with a credential that this service does not accept",
            why="it belongs to another run or another start of this one, or was rotated out",
            fix="read the credential again; see docs/runbooks for TidegateCallsRefused",
        )
    if role not in callers:
        return PermissionDeniedError(
            f"{method} was called as {role}, which may not call it",
            why=f"{_listed(callers)} may",
            fix="use the credential of that role, or change wire/call_permissions.py if the role needs the call",
        )
    return None


def _listed(roles: tuple[Role, ...]) -> str:
    return f"only {' and '.join(roles)}" if roles else "no role"


def _token_in(metadata: Metadata) -> str:
    for key, value in metadata:
        if key == AUTHORIZATION:
            text = value if isinstance(value, str) else value.decode("ascii", "replace")
            return text.removeprefix(SCHEME) if text.startswith(SCHEME) else ""
    return ""


class GuardedHandlers(grpc.GenericRpcHandler):  # generic for the type checker only
    """The methods of one service; a call that its caller may not make goes to a handler that reads nothing."""

    def __init__(
        self,
        service: str,
        handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]],
        accepted: AcceptedTokens,
        *,
        on_refused: Callable[[str, str], None],
    ) -> None:
        """``on_refused``: called with the full method name and the status of each refused call."""
        self._service = service
        self._handlers = {f"/{service}/{method}": (method, handler) for method, handler in handlers.items()}
        self._accepted = accepted
        self._on_refused = on_refused
        self._log = _RefusalLog()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call; None where this service has no such method."""
        found = self._handlers.get(handler_call_details.method)
        if found is None:
            return None
        method, handler = found
        metadata = cast("Metadata", handler_call_details.invocation_metadata or ())
        refusal = authorise(self._accepted, self._service, method, metadata)
        return handler if refusal is None else self._refusing(method, refusal)

    def _refusing(self, method: str, refusal: TidegateError) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            self._on_refused(f"{self._service}/{method}", refusal.status)
            self._log.note(self._service, method, refusal, peer=context.peer())
            await context.abort(getattr(grpc.StatusCode, refusal.status), str(refusal))

        # Takes a stream, of which it reads nothing; callers of every kind of method understand the status.
        return grpc.stream_unary_rpc_method_handler(cast("Any", refuse))


class _RefusalLog:
    """Logs refused calls, once in a while for each method and status; methods and statuses are few."""

    def __init__(self) -> None:
        self._period = LogPeriod()

    def note(self, service: str, method: str, refusal: TidegateError, *, peer: str) -> None:
        left_out = self._period.left_out(f"{method} {refusal.status}", period_s=LOG_PERIOD_S)
        if left_out is None:
            return
        log.warning(
            "call_refused",
            method=f"{service}/{method}",
            peer=peer,
            why=str(refusal),
            refused_since_last_line=left_out,
        )
