"""A process as the supervisor starts it: its command, its log, its environment."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from tidegate.launch.guarded import SUPERVISOR_VARIABLE
from tidegate.launch.inherited_environment import inherited
from tidegate.launch.restarts import HEALTHY_AFTER_S


class ProcessSpec(msgspec.Struct, frozen=True):
    """One supervised process: its name, command, log file and environment.

    ``fork_server``: the fork server that may start it instead, by forking a process which runs ``tidegate serve`` with
    the arguments ``serve`` once ``modules`` are loaded; empty for other programs. ``essential``: whether the platform
    ends when this process fails for good.
    ``replica_of``: processes with the same name here do the same work; the platform ends only when none of them is
    left. ``healthy_after_s``: a process that lived this long was healthy, and its next crash counts as the first.
    ``environment`` is added to what it inherits, which ``inherits`` extends by name (``inherited_environment``).
    """

    name: str
    command: list[str]
    log: Path
    environment: dict[str, str] = {}
    inherits: tuple[str, ...] = ()
    fork_server: str = ""
    serve: list[str] = []
    modules: list[str] = []
    essential: bool = True
    replica_of: str = ""
    healthy_after_s: float = HEALTHY_AFTER_S


class RunningProcess(Protocol):
    """A child of this process. ``returncode`` is None until it ended; negative when a signal ended it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Its exit code."""
        ...

    async def wait(self) -> int:
        """Wait for its end and return its exit code."""
        ...


def environment_of(spec: ProcessSpec) -> dict[str, str]:
    """The whole environment of a process: what it inherits, its own additions, and whom it is guarded by."""
    return {
        **inherited(os.environ, spec.inherits),
        **spec.environment,
        SUPERVISOR_VARIABLE: str(os.getpid()),
    }


def open_log(path: Path) -> int:
    """A descriptor that appends to a log file, which this user alone may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


async def start_program(spec: ProcessSpec, *, descriptors: Sequence[int] = ()) -> RunningProcess:
    """Start the command in a session of its own; it inherits ``descriptors`` under the same numbers."""
    log = open_log(spec.log)
    try:
        return await asyncio.create_subprocess_exec(
            *spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment_of(spec),
            start_new_session=True,
            pass_fds=descriptors,
        )
    finally:
        os.close(log)
