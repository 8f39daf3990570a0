"""Free ports on loopback, below the range of outgoing connections, which no two processes choose at the same time.

A service that restarts finds its port still free: no outgoing connection can have taken it meanwhile.

A port that is free now may be taken before a service listens on it, by a second platform that looked at the same
moment. So a process chooses from blocks of ports that it holds until it ends. What holds a block is a socket of Linux's
abstract namespace: it has no file, belongs to the same network namespace as the ports, and the kernel frees it with the
process. Other systems have none, and two platforms that start together there rarely choose the same block.
"""

import errno
import random
import socket
import sys
from collections import deque

from tidegate.core.errors import ConfigError, UnavailableError

LOOPBACK = "127.0.0.1"
# Linux gives outgoing connections ports from 32768 on, other systems from 49152 on, and Kubernetes its node ports from
# 30000 on.
FIRST_PORT = 20_000
LAST_PORT = 30_000
# A platform with its replicas needs a dozen or two.
BLOCK_PORTS = 100


class PortBlocks:
    """The blocks of one process between ``first`` and ``last``; ``close`` frees them, and so does the process' end.

    Bounds: there are as many blocks as the range has, and a process takes one when it has given out all of its own.
    """

    def __init__(self, *, first: int = FIRST_PORT, last: int = LAST_PORT) -> None:
        self._starts = range(first, last, BLOCK_PORTS)
        self._sockets: dict[int, socket.socket | None] = {}
        self._unused: deque[int] = deque()

    @property
    def described(self) -> str:
        """The range."""
        return f"between {self._starts.start} and {self._starts.stop}"

    def next_port(self) -> int | None:
        """A port that this process has not given out yet, free or not; None if other processes hold the rest."""
        if not self._unused:
            others = [start for start in self._starts if start not in self._sockets]
            random.shuffle(others)
            if not any(self._take(start) for start in others):
                return None
        return self._unused.popleft()

    def take(self, port: int) -> bool:
        """Whether no other process may choose ``port``: from now on none will."""
        start = port - (port - self._starts.start) % BLOCK_PORTS
        if start not in self._starts:
            return True
        if start not in self._sockets and not self._take(start):
            return False
        if port in self._unused:
            self._unused.remove(port)
        return True

    def give_out_again(self) -> None:
        """Begin with the ports of the own blocks again: those given out long ago may be free."""
        for start in self._sockets:
            self._unused.extend(range(start, start + BLOCK_PORTS))

    def close(self) -> None:
        """Free all blocks."""
        for held in self._sockets.values():
            if held is not None:
                held.close()
        self._sockets.clear()
        self._unused.clear()

    def _take(self, start: int) -> bool:
        held = None
        if sys.platform == "linux":
            held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                held.bind(f"\0tidegate-ports-{start}")
            except OSError:
                held.close()
                return False
        self._sockets[start] = held
        self._unused.extend(range(start, start + BLOCK_PORTS))
        return True


# Of this process, until it ends: a service that is started again listens on its port again.
_blocks = PortBlocks()


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


def take_port(port: int, *, blocks: PortBlocks = _blocks) -> bool:
    """Whether ``port`` is free and no other process may choose it before this one ends."""
    return is_free(port) and blocks.take(port)


def pick_ports(count: int, *, taken: frozenset[int] = frozenset(), blocks: PortBlocks = _blocks) -> list[int]:
    """``count`` distinct free ports, none of them in ``taken``, that no other process is given while this one runs.

    Raises:
        UnavailableError: the range is exhausted.
    """
    picked: list[int] = []
    is_second_round = False
    while len(picked) < count:
        port = blocks.next_port()
        if port is not None:
            if port not in taken and port not in picked and is_free(port):
                picked.append(port)
        elif not is_second_round:
            is_second_round = True
            blocks.give_out_again()
        else:
            raise UnavailableError(
                f"Only {len(picked)} of {count} ports are free {blocks.described}",
                why="other platforms and programs of this machine hold the rest",
                fix="stop other platforms on this machine",
            )
    return picked
