"""Core subscriptions of the client library, which leaves a parameter of its ``subscribe`` untyped."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription


async def subscribe(client: Client, subject: str, receive: Callable[[Msg], Awaitable[None]]) -> Subscription:
    """Hand what comes to a subject to ``receive``, one message after the other, until it is unsubscribed."""
    return await cast("Any", client).subscribe(subject, cb=receive)
