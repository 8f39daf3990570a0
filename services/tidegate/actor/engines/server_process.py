"""An inference server as a child of this actor: starts on a free port and ends with the actor, even after SIGKILL."""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.actor.engines import server_guard
from tidegate.core.errors import UnavailableError
from tidegate.runtime.python_program import python_program

# From SIGTERM to SIGKILL of the guard: longer than the guard gives the server.
GRACE_S = server_guard.GRACE_S + 5.0
LOG_TAIL_BYTES = 2000


class ServerProcess:
    """One server with its processes, supervised by ``server_guard``. Its output is a file, truncated at each start."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        """``command``: an absolute program and its arguments. ``environment``: added to this process' variables."""
        self._command = command
        self._environment = environment
        self._log = log
        self._guard: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the server; its client checks whether it is ready."""
        await self.stop()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._guard = await asyncio.create_subprocess_exec(
                *python_program(server_guard.__name__, str(os.getpid()), *self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                # Ctrl-C in the terminal reaches only the actor, which drains before its server ends.
                start_new_session=True,
            )

    def check(self) -> None:
        """Whether it still runs.

        Raises:
            UnavailableError: it ended; the message ends with its last output.
        """
        if self._guard is not None and self._guard.returncode is not None:
            raise UnavailableError(
                f"The inference server ended with exit code {self._guard.returncode}",
                why=f"its last output: {self._log_tail()}",
                fix=f"read {self._log}",
            )

    async def stop(self) -> None:
        """End it with all of its processes; takes some seconds at most."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        with contextlib.suppress(ProcessLookupError):
            guard.terminate()
        try:
            async with asyncio.timeout(GRACE_S):
                await guard.wait()
        except TimeoutError:
            guard.kill()
            await guard.wait()

    def _log_tail(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
