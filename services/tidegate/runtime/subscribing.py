"""Core subscriptions of the client library, which leaves a parameter of its ``subscribe`` untyped."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription


async def subscribe(client: Client, subject: str, receive: Callable[[Msg], Awaitable[None]]) -> Subscription:
    """Pass each message of a subject to ``receive``, in order, until it is unsubscribed."""
    return await cast("Any", client).subscribe(subject, cb=receive)
