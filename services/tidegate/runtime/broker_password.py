"""The password of this process' user at the broker, which may be rotated while it is connected.

In a cluster it is a file of a mounted Secret: the current password in the first line, and those of before and after it
in the others. The broker knows one of them at a time, and pods see a changed Secret within a minute or two of each
other. So a client that the broker refuses tries the next line at once, and finds the right one whichever of the two
has seen a rotation first.
"""

from collections.abc import Callable
from pathlib import Path

from tidegate.runtime.changing_file import ChangingFile

PASSWORDS_MAX = 4


class BrokerPassword:
    """The password to connect with; another one after each refusal."""

    def __init__(self, known: Callable[[], tuple[str, ...]]) -> None:
        """``known``: the passwords that the broker may accept, the most likely first; at least one."""
        self._known = known
        self._candidates = known()
        self._index = 0

    def current(self) -> str:
        """The password for the next attempt: the first one of a file that changed since the last."""
        known = self._known()
        if known != self._candidates:
            self._candidates, self._index = known, 0
        return self._candidates[self._index]

    def refuse(self) -> None:
        """The broker does not know the one of the last attempt."""
        self._index = (self._index + 1) % len(self._candidates)


def broker_password(password: str, path: str) -> BrokerPassword:
    """The password in the file ``path``; ``password`` where there is no file.

    Raises:
        ConfigError: the file cannot be read, or holds no password.
    """
    if not path:
        return BrokerPassword(lambda: (password,))
    file = ChangingFile(
        Path(path),
        parse_passwords,
        what="password of the broker",
        fix="the chart's Job writes it; see the Secret of the release",
    )
    return BrokerPassword(file.content)


def parse_passwords(data: bytes) -> tuple[str, ...]:
    """The passwords of a file, one a line.

    Raises:
        ValueError: there is none.
    """
    passwords = tuple(line.strip() for line in data.decode("ascii").splitlines() if line.strip())
    if not passwords:
        raise ValueError("it is empty")
    return passwords[:PASSWORDS_MAX]
