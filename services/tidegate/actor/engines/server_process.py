"""An inference server as a child of this actor: started on a free port, ended with it, however it ends."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.core.errors import UnavailableError

# The program that ties a child to whoever starts it, and the name by which it knows it.
LEASH = "tidegate.cli.up.leash"
SUPERVISOR_VARIABLE = "TIDEGATE_SUPERVISOR_PID"

# Between asking a server to end and ending it.
GRACE_S = 5.0
LOG_TAIL_BYTES = 2000


class ServerProcess:
    """One child and its children, in a session of their own. Its output is a file, begun anew with each start."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        """``command``: an absolute program and its arguments. ``environment``: beside this process' own."""
        self._command = command
        self._environment = environment
        self._log = log
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; whether it is ready is for its client to find out."""
        await self.stop()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **self._environment, SUPERVISOR_VARIABLE: str(os.getpid())}
        with self._log.open("wb") as log:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", LEASH, *self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def check(self) -> None:
        """Whether it still runs.

        Raises:
            UnavailableError: it ended; the message ends with what it last wrote.
        """
        if self._child is not None and self._child.returncode is not None:
            raise UnavailableError(
                f"The inference server ended with exit code {self._child.returncode}",
                why=f"its last words: {self._tail()}",
                fix=f"read {self._log}",
            )

    @property
    def pid(self) -> int | None:
        """Of the server's first process; None before its start."""
        return None if self._child is None else self._child.pid

    async def stop(self) -> None:
        """End it and its children: politely, then at once."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            _signal_group(child.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await child.wait()
        # Its children share its group, and may outlive it.
        _signal_group(child.pid, signal.SIGKILL)
        await child.wait()

    def _tail(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
