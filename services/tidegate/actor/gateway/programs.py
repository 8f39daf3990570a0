"""An agent's process: with a minimal environment, a deadline, and a kill that includes its children."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
import psutil

from tidegate.core.errors import UnavailableError
from tidegate.runtime.races import run_until

STDERR_BYTES_MAX = 4096
READ_BYTES = 4096
# Variables that a program inherits: paths and locale, no secrets.
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
# Placeholder of this interpreter's path, so that one run file fits every machine.
PYTHON = "python"


class ProgramEnd(msgspec.Struct, frozen=True):
    """How a program ended: ``exit_code`` is None where it had to be killed; ``stderr`` is the end of its output."""

    exit_code: int | None
    stderr: str

    def __str__(self) -> str:
        """For people."""
        how = "was killed" if self.exit_code is None else f"ended with code {self.exit_code}"
        return (
            f"the program {how}: {self.stderr.strip()[-400:]}"
            if self.stderr.strip()
            else f"the program {how}"
        )


def environment_of(
    own: Mapping[str, str], *, passed: Sequence[str], given: Mapping[str, str]
) -> dict[str, str]:
    """A program's variables: a few of this process' ``own``, those the run file passes, and ``given``."""
    return {name: own[name] for name in (*PASSED, *passed) if name in own} | dict(given)


def arguments_of(command: Sequence[str], *, prompt: str) -> list[str]:
    """The arguments of a command with the prompt filled in; no shell parses them."""
    words = [word.replace("{prompt}", prompt) for word in command]
    return [sys.executable if words[0] == PYTHON else words[0], *words[1:]]


async def run_program(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    ended: asyncio.Event,
    deadline_s: float,
    kill_grace_s: float,
) -> ProgramEnd:
    """Run a program until it ends, or its episode has and its grace is over, or its deadline.

    On every exit, also by cancellation, this kills the program and its children: its session, and children that left
    the session while their parent lived.

    Raises:
        UnavailableError: it cannot be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"The agent {arguments[0]!r} cannot be started",
            why=str(error),
            fix="set actor.gateway.command to a program of this machine",
        ) from error
    tail = bytearray()
    assert process.stderr is not None, "stderr is a pipe"
    reading = asyncio.create_task(_keep_last(process.stderr, tail))
    exiting = asyncio.create_task(process.wait())
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await run_until(ended.wait(), asyncio.shield(exiting))
        if not exiting.done() and ended.is_set():
            await asyncio.wait({exiting}, timeout=kill_grace_s)
        exit_code = process.returncode
        if exit_code is not None:
            # Read only what the pipe holds now; a child that still runs keeps it open.
            await asyncio.wait({reading}, timeout=0.1)
    finally:
        # A separate task: a caller that is cancelled while it waits still leaves no process behind.
        killing = asyncio.create_task(_end(process, exiting, grace_s=kill_grace_s))
        try:
            await asyncio.shield(killing)
        finally:
            await asyncio.wait({killing})
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    return ProgramEnd(exit_code, tail.decode(errors="replace"))


async def _keep_last(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while data := await stream.read(READ_BYTES):
        tail += data
        del tail[:-STDERR_BYTES_MAX]


async def _end(process: asyncio.subprocess.Process, exiting: asyncio.Task[int], *, grace_s: float) -> None:
    """Send SIGTERM to the program and its children, then SIGKILL."""
    strays = _children(process.pid)
    if not exiting.done():
        _signal(process.pid, strays, signal.SIGTERM)
        await asyncio.wait({exiting}, timeout=grace_s)
        strays += _children(process.pid)
    _signal(process.pid, strays, signal.SIGKILL)
    await asyncio.wait({exiting})


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _signal(pid: int, strays: Sequence[psutil.Process], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    for stray in strays:
        with suppress(psutil.Error):
            stray.send_signal(number)
