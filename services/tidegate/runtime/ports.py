"""Free ports on loopback, below the range of outgoing connections.

A service that restarts finds its port still free: no outgoing connection can have taken it meanwhile.
"""

import errno
import random
import socket

from tidegate.core.errors import ConfigError, UnavailableError

LOOPBACK = "127.0.0.1"
# Linux gives outgoing connections ports from 32768 on, other systems from 49152 on, and Kubernetes its node ports from
# 30000 on.
FIRST_PORT = 20_000
LAST_PORT = 30_000


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def require_free(port: int, *, setting: str) -> int:
    """``port``, if it is free.

    Raises:
        ConfigError: something else listens there.
    """
    if not is_free(port):
        raise ConfigError(
            f"Port {port} ({setting}) is taken",
            why=f"another program listens on {LOOPBACK}:{port}, perhaps a second `tidegate up`",
            fix=f"stop it, or set {setting} to another port (0 takes a free one)",
        )
    return port


def pick_ports(count: int, *, taken: frozenset[int] = frozenset()) -> list[int]:
    """``count`` distinct free ports, none of them in ``taken``.

    Raises:
        UnavailableError: the range is exhausted.
    """
    candidates = list(range(FIRST_PORT, LAST_PORT))
    random.shuffle(candidates)  # two platforms that start together rarely ask for the same one
    picked: list[int] = []
    for port in candidates:
        if len(picked) == count:
            break
        if port not in taken and is_free(port):
            picked.append(port)
    if len(picked) < count:
        raise UnavailableError(
            f"Only {len(picked)} of {count} ports are free between {FIRST_PORT} and {LAST_PORT}",
            fix="stop other platforms on this machine",
        )
    return picked
