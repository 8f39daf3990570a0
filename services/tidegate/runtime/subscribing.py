"""Core subscriptions of the client library, which leaves a parameter of its ``subscribe`` untyped."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from tidegate.runtime.bus_failures import BusFailures


async def subscribe(
    client: Client, subject: str, receive: Callable[[Msg], Awaitable[None]], failures: BusFailures
) -> Subscription:
    """Pass each message of a subject to ``receive``, in order, until it is unsubscribed.

    A message at which ``receive`` raises is lost, and the next one is passed: a defect of the service, which goes to
    ``failures`` because the client library drops the exception.
    """

    async def receive_logged(message: Msg) -> None:
        try:
            await receive(message)
        except Exception as error:
            failures.note_message(subject, error)

    return await cast("Any", client).subscribe(subject, cb=receive_logged)
