"""A gRPC channel with mutual TLS whose new calls use the certificates that its folder holds now."""

from __future__ import annotations  # gRPC's classes are generic for the type checker only

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from tidegate.runtime.tls import IdentityFolder, channel_credentials

OpenChannel = Callable[[grpc.ChannelCredentials], grpc.aio.Channel]


class _Connection:
    """A channel with one certificate. Once retired it is closed with the last call in flight on it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._on_unused: Callable[[], None] | None = None
        self._calls_in_flight = 0

    def begin(self, call: Any) -> Any:
        """Note a call that has just begun."""
        self._calls_in_flight += 1
        call.add_done_callback(self._on_done)
        return call

    def retire(self, on_unused: Callable[[], None]) -> None:
        """Begin no further call; ``on_unused`` is called when none is in flight."""
        self._on_unused = on_unused
        if self._calls_in_flight == 0:
            on_unused()

    def _on_done(self, _call: object) -> None:
        self._calls_in_flight -= 1
        if self._calls_in_flight == 0 and self._on_unused is not None:
            self._on_unused()


class RenewedChannel(grpc.aio.Channel):
    """A channel that is opened again when its certificates change.

    gRPC's own channel keeps the certificate that it was opened with for every later handshake, so that after its expiry
    it could not connect again. Calls in flight stay on the connection that they began on: there are as many connections
    as certificates that calls in flight began with, and one more.
    """

    def __init__(self, open_channel: OpenChannel, identities: IdentityFolder) -> None:
        """``open_channel``: to the one peer of this channel, with the given credentials."""
        self._open = open_channel
        self._identities = identities
        self._newest = _Connection(open_channel(channel_credentials(identities.identity)))
        self._retired: set[_Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        """One request, one response."""
        return self._on_newest("unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        """One request, many responses."""
        return self._on_newest("unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """Many requests, one response."""
        return self._on_newest("stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """Many requests, many responses."""
        return self._on_newest("stream_stream", arguments, options)

    def _on_newest(
        self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Callable[..., Any]:
        """A stub's callable, made again for each connection that it is used on."""
        made_for = self._newest
        begin = getattr(made_for.channel, kind)(*arguments, **options)

        def call(*call_arguments: Any, **call_options: Any) -> Any:
            nonlocal made_for, begin
            newest = self._renewed()
            if newest is not made_for:
                made_for, begin = newest, getattr(newest.channel, kind)(*arguments, **options)
            return newest.begin(begin(*call_arguments, **call_options))

        return call

    def _renewed(self) -> _Connection:
        if self._identities.has_changed():
            retired = self._newest
            self._newest = _Connection(self._open(channel_credentials(self._identities.identity)))
            self._retired.add(retired)
            retired.retire(on_unused=lambda: self._drop(retired))
        return self._newest

    def _drop(self, retired: _Connection) -> None:
        self._retired.discard(retired)
        closing = asyncio.create_task(retired.channel.close(None))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self, grace: float | None = None) -> None:
        """Close every connection; calls in flight get ``grace`` seconds."""
        connections = [self._newest, *self._retired]
        await asyncio.gather(*[connection.channel.close(grace) for connection in connections], *self._closing)

    async def __aenter__(self) -> RenewedChannel:
        """Leaving the block closes the channel."""
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Close it."""
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # gRPC's
        """The state of the newest connection."""
        return self._renewed().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return once the state differs."""
        await self._renewed().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Return once connected."""
        await self._renewed().channel.channel_ready()
