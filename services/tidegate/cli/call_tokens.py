"""The tokens of calls in a Kubernetes Secret: made once, rotated on request without refusing a call.

For each role the Secret has the token that callers send (``<role>.token``) and the next one (``<role>.next``, which
no pod mounts); ``digests.json`` accepts both and the previous one. A rotation makes the next token the current one, so
that it does not matter which pods have seen it: servers that have not already accept the new token, and servers that
have accept the old one until the rotation after.

The same Secret has the secrets of tasks, rotated with the tokens (``runtime.task_secret``): the store knows the next
one before it is used, and accepts a previous one for as long as tasks live.
"""

import secrets
from collections.abc import Mapping

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.call_credentials import DIGESTS_FILE, digest_of_token, token_file
from tidegate.runtime.task_secret import TASKS_FILE, TaskSecrets, new_task_secret, task_secrets_of
from tidegate.wire.call_permissions import ROLES, Role

TOKEN_BYTES = 32
# The value of the setting that asked for the last rotation.
ROTATION_KEY = "rotation"


def new_call_token() -> str:
    """A random token: 64 hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)


def next_file(role: Role) -> str:
    """The key of a role's next token."""
    return f"{role}.next"


def missing_call_tokens(present: Mapping[str, str], *, rotation: str, now_s: float) -> dict[str, str]:
    """What to write to a Secret of tokens: nothing where it is whole and ``rotation`` is what it was.

    Raises:
        ConfigError: its digests or secrets of tasks cannot be read, so the previous ones are not known.
    """
    has_tokens = any(present.get(token_file(role)) for role in ROLES)
    rotates = has_tokens and present.get(ROTATION_KEY, "") != rotation
    accepted_before = _digests_in(present)
    wanted = {ROTATION_KEY: rotation, TASKS_FILE: _task_secrets(present, rotates=rotates, now_s=now_s)}
    digests: dict[str, list[str]] = {}
    for role in ROLES:
        current, following = present.get(token_file(role)), present.get(next_file(role))
        previous = accepted_before.get(role, [])[2:]
        if rotates and current:
            previous = [digest_of_token(current)]
            current, following = following, None
        wanted[token_file(role)] = current or new_call_token()
        wanted[next_file(role)] = following or new_call_token()
        own = [digest_of_token(wanted[name]) for name in (token_file(role), next_file(role))]
        digests[role] = [*own, *previous]
    wanted[DIGESTS_FILE] = msgspec.json.encode(digests).decode()
    return {key: value for key, value in wanted.items() if present.get(key) != value}


def _task_secrets(present: Mapping[str, str], *, rotates: bool, now_s: float) -> str:
    text = present.get(TASKS_FILE)
    if not text:
        return TaskSecrets(new_task_secret()).with_next().to_text()
    known = task_secrets_of(text)
    wanted = known.rotated(now_s=now_s) if rotates else known.with_next()
    return text if wanted == known else wanted.to_text()


def _digests_in(present: Mapping[str, str]) -> dict[str, list[str]]:
    text = present.get(DIGESTS_FILE)
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, list[str]])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{DIGESTS_FILE} of the Secret of call tokens cannot be read",
            why=str(error),
            fix="remove that key, and the Job writes it again",
        ) from error
