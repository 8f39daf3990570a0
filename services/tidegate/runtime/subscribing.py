"""Core subscriptions of the client library, which leaves a parameter of its ``subscribe`` untyped."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

# Messages that fail one after the other must not fill the disk with tracebacks.
LOG_PERIOD_S = 10.0

log = structlog.get_logger("bus")


async def subscribe(client: Client, subject: str, receive: Callable[[Msg], Awaitable[None]]) -> Subscription:
    """Pass each message of a subject to ``receive``, in order, until it is unsubscribed.

    A message at which ``receive`` raises is lost, and the next one is passed: a defect of the service, which is logged
    here because the client library drops the exception.
    """
    next_line_s, num_left_out = float("-inf"), 0

    async def receive_logged(message: Msg) -> None:
        nonlocal next_line_s, num_left_out
        try:
            await receive(message)
        except Exception as error:
            now_s = time.monotonic()
            if now_s < next_line_s:
                num_left_out += 1
                return
            log.exception("message_handler_failed", subject=subject, left_out=num_left_out, error=str(error))
            next_line_s, num_left_out = now_s + LOG_PERIOD_S, 0

    return await cast("Any", client).subscribe(subject, cb=receive_logged)
