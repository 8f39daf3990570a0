"""The call credentials of a service, from its settings."""

from functools import partial
from pathlib import Path

from tidegate.runtime.call_credentials import DIGESTS_FILE, AcceptedTokens, DigestsFile, find_token
from tidegate.runtime.config import Settings
from tidegate.runtime.rpc import open_channel
from tidegate.runtime.service import Channels
from tidegate.wire.call_permissions import Role


def accepted_tokens(settings: Settings) -> AcceptedTokens:
    """The callers that a service of this run recognises.

    Raises:
        ConfigError: the run's credentials cannot be read.
    """
    return DigestsFile(Path(settings.credentials_dir) / DIGESTS_FILE)


def channels_of(settings: Settings, role: Role) -> Channels:
    """Channels to the other services of this run, which know the caller as ``role``.

    Raises:
        NotFoundError: this process may not act as the role.
        ConfigError: its credential cannot be read.
    """
    token = find_token(Path(settings.credentials_dir), role)
    return Channels(settings.addresses, open_channel=partial(open_channel, token=token))
