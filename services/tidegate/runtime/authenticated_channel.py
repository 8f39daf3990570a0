"""A gRPC channel that sends its caller's credential and the current trace context with every call."""

from __future__ import annotations  # gRPC's classes are generic for the type checker only

import contextvars
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from tidegate.runtime.call_credentials import CallToken
from tidegate.wire.call_permissions import AUTHORIZATION, SCHEME
from tidegate.wire.subjects import HEADER_TRACE_PARENT

# Trace context of the call being served, or to be sent with the next call.
trace_context: contextvars.ContextVar[str] = contextvars.ContextVar("trace_context", default="")

Metadata = Iterable[tuple[str, str | bytes]]


class AuthenticatedChannel(grpc.aio.Channel):
    """A channel that sends its caller's token, and the current trace context, with calls of every kind.

    A thin layer over the stubs' callables: an interceptor would start a task for each call and change how streams are
    written to.
    """

    def __init__(self, channel: grpc.aio.Channel, token: CallToken | None) -> None:
        """``channel``: closed with this one. ``token``: None for calls that need no credential."""
        self._channel = channel
        self._token = token

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        """One request, one response."""
        return self._with_metadata(self._channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        """One request, many responses."""
        return self._with_metadata(self._channel.unary_stream(*arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """Many requests, one response."""
        return self._with_metadata(self._channel.stream_unary(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """Many requests, many responses."""
        return self._with_metadata(self._channel.stream_stream(*arguments, **options))

    def _with_metadata(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, metadata: Metadata = (), **options: Any) -> Any:
            return begin(*arguments, metadata=self._metadata(metadata), **options)

        return call

    def _metadata(self, given: Metadata) -> tuple[tuple[str, str | bytes], ...]:
        added = list(given)
        if self._token is not None:
            added.append((AUTHORIZATION, SCHEME + self._token.current()))
        trace_parent = trace_context.get()
        if trace_parent:
            added.append((HEADER_TRACE_PARENT, trace_parent))
        return tuple(added)

    async def close(self, grace: float | None = None) -> None:
        """Close the connection; calls in flight get ``grace`` seconds."""
        await self._channel.close(grace)

    async def __aenter__(self) -> AuthenticatedChannel:
        """Leaving the block closes the channel."""
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Close it."""
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # gRPC's
        """The state of the connection."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return once the state differs."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Return once connected."""
        await self._channel.channel_ready()
