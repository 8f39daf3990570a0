"""gRPC calls of any kind by their descriptor, and statuses that the client loses on the way."""

from __future__ import annotations  # gRPC's classes are generic for the type checker only

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor

ResultT = TypeVar("ResultT")
TIMEOUT_S = 60.0
# grpc.aio's own INTERNAL, in place of the server's status, for a message sent into a call that the server has just
# ended (grpc/grpc#36066). Clients take it for UNAVAILABLE and repeat the call.
STATUS_LOST = "Internal error from Core"


def path_of(method: MethodDescriptor) -> str:
    """The full name of a method, as servers report it."""
    return f"{method.containing_service.full_name}/{method.name}"


async def status_of(
    channel: grpc.aio.Channel, method: MethodDescriptor, requests: Sequence[bytes], *, timeout_s: float
) -> grpc.StatusCode | None:
    """The status of one call, whatever the kind of its method; None where the client lost it."""

    async def stream() -> AsyncIterator[bytes]:
        for request in requests:
            yield request

    sends = "stream" if method.client_streaming else "unary"
    receives = "stream" if method.server_streaming else "unary"
    begin: Any = getattr(channel, f"{sends}_{receives}")(f"/{path_of(method)}")
    call = begin(stream() if method.client_streaming else requests[0], timeout=timeout_s)
    try:
        if method.server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return None if STATUS_LOST in (error.details() or "") else error.code()
    return grpc.StatusCode.OK


async def with_status(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """The outcome of a call, made again as long as the client loses its status."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await call()
            except Exception as error:  # AioRpcError of a stub, and what a client of wire makes of it
                if STATUS_LOST not in str(error):
                    raise
