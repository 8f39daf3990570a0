"""The broker's client, which connects again when the broker ends its authorisation."""

from typing import Any, cast

from nats.aio.client import Client
from nats.errors import AuthorizationError

# The broker's error, in lower case, as the library compares it.
_NO_USER = "authorization violation"


class ReconnectingClient(Client):
    """A client for which a password that the broker no longer knows is a lost connection.

    The library closes such a client for good: after a rotation, every service would have to be started again. Its
    subscriptions and its inbox stay, and the next attempt to connect sends the password of that moment.
    """

    async def _process_err(self, err_msg: str) -> None:
        if _NO_USER in err_msg.lower() and self.is_connected:
            await cast("Any", super())._process_op_err(AuthorizationError())
            return
        await cast("Any", super())._process_err(err_msg)
