"""The passwords of the broker's users in a Kubernetes Secret: made once, rotated on request without a restart.

For each user the Secret has its password, and a file for the pods of that user (``<user>.passwords``): the current
password, the next one, and the previous one, a line each. A file that the broker's configuration includes
(``passwords.conf``) has all current ones. A rotation makes the next password the current one. The broker reads its file
again and ends the connections with the previous password; clients continue with another line of theirs, whichever pods
have seen the rotation. Passwords of the broker itself (routes, its own account) are made once: it reads them at its
start only.
"""

import secrets
from collections.abc import Mapping, Sequence

PASSWORD_BYTES = 24
PASSWORDS_CONF = "passwords.conf"
# The value of the setting that asked for the last rotation.
ROTATION_KEY = "rotation"


def passwords_file(user: str) -> str:
    """The key with the passwords that a user's pods try, and their file."""
    return f"{user}.passwords"


def variable_of(user: str) -> str:
    """The name under which the broker's configuration finds a password; the chart's template has the same."""
    return f"TG_{user.upper().replace('-', '_')}"


def new_password() -> str:
    """A random password; safe in a shell, a URL and the broker's configuration.

    It begins with a letter: the broker reads a variable as a value of its configuration, where digits first would be a
    number.
    """
    return f"p{secrets.token_hex(PASSWORD_BYTES)}"


def missing_passwords(
    present: Mapping[str, str], *, users: Sequence[str], keys: Sequence[str], rotation: str
) -> dict[str, str]:
    """What to write to a Secret of passwords: nothing where it is whole and ``rotation`` is what it was.

    ``users``: whose passwords are rotated. ``keys``: further passwords, made once.
    """
    wanted = {key: present.get(key) or new_password() for key in keys}
    if not users:
        return {key: value for key, value in wanted.items() if present.get(key) != value}
    rotates = PASSWORDS_CONF in present and present.get(ROTATION_KEY, "") != rotation
    wanted[ROTATION_KEY] = rotation
    for user in users:
        current = present.get(user) or new_password()
        _, following, *previous = [*present.get(passwords_file(user), "").split(), "", ""][:3]
        following = following or new_password()
        kept = [each for each in previous if each]
        # A password without a file is one that no pod can exchange: it gets a next one first.
        if rotates and present.get(passwords_file(user)):
            current, following, kept = following, new_password(), [current]
        wanted[user] = current
        wanted[passwords_file(user)] = "\n".join((current, following, *kept)) + "\n"
    wanted[PASSWORDS_CONF] = "".join(f'{variable_of(user)}: "{wanted[user]}"\n' for user in users)
    return {key: value for key, value in wanted.items() if present.get(key) != value}
