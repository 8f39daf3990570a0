"""Call credentials of tests: those of every role of one made-up run."""

from pathlib import Path
from typing import Any

import grpc

from tidegate.runtime.authenticated_channel import AuthenticatedChannel
from tidegate.runtime.call_credentials import (
    AcceptedTokens,
    CallToken,
    FixedToken,
    accepting,
    derived_tokens,
    write_credentials,
)
from tidegate.runtime.rpc import open_channel
from tidegate.wire.call_permissions import Role, callers_of

SECRET = "the secret of every test run"
TOKENS = derived_tokens(SECRET)


def accepted() -> AcceptedTokens:
    """What a server of a test accepts."""
    return accepting(TOKENS)


def token_of(role: Role) -> CallToken:
    """The credential of a role."""
    return FixedToken(TOKENS[role])


def channel_as(role: Role, address: str) -> grpc.aio.Channel:
    """A channel to a server of a test, called as ``role``."""
    return open_channel(address, token_of(role))


def permitted_channel(address: str) -> grpc.aio.Channel:
    """A channel for a test that plays several roles: each method is called as the first role that may call it."""
    return _PermittedChannel(open_channel(address, None), None)


def write_test_credentials(folder: Path) -> str:
    """A folder with the credentials of every role; returns its path."""
    write_credentials(folder, TOKENS)
    return str(folder)


class _PermittedChannel(AuthenticatedChannel):
    """Chooses the credential by the method."""

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._as_permitted(method).unary_unary(method, *arguments, **options)

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._as_permitted(method).unary_stream(method, *arguments, **options)

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._as_permitted(method).stream_unary(method, *arguments, **options)

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._as_permitted(method).stream_stream(method, *arguments, **options)

    def _as_permitted(self, path: str) -> AuthenticatedChannel:
        _, service, method = path.split("/")
        callers = callers_of(service, method)
        return AuthenticatedChannel(self._channel, token_of(callers[0]) if callers else None)
