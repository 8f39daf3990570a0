"""The tasks of the broker's client, which end for good by an error that the library does not expect.

Such an error is a MemoryError, or a RuntimeError of a closed transport. Without its pings a client notices no lost
connection, without the task that reconnects it stays away, and without its reader a subscription stays silent: the
process lives and does nothing. A reader of the socket that ended is noticed by the pings, and a flusher that ended is
replaced by the library.
"""

import asyncio
from typing import Any, cast

from nats.aio.client import Client
from nats.errors import Error as NatsError

# How the client fails to send; a RuntimeError is uvloop's, of a closed transport that the client has not noticed.
SEND_ERRORS = (NatsError, OSError, RuntimeError)


def ended_task(client: Client) -> str:
    """What the client does not do any more until it is replaced; empty while it works, or was closed."""
    tasks = cast("Any", client)
    if client.is_reconnecting and _has_ended(tasks._reconnection_task):
        return "reconnect to the broker"
    if client.is_connected and _has_ended(tasks._ping_interval_task):
        return "ping the broker"
    if not client.is_closed:
        for subscription in tasks._subs.values():
            if _has_ended(subscription._wait_for_msgs_task):
                return f"receive messages of {subscription.subject}"
    return ""


def _has_ended(task: "asyncio.Task[None] | None") -> bool:
    return task is not None and task.done()
