"""An agent's process: started with little more than its keys, bounded in time, ended with its children."""

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
# What a program sees of this process: where things are, and nothing that opens anything.
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
# This interpreter, so that one run file fits every machine.
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
    """What a program sees: little of this process' ``own`` variables, what the run file passes, what it is given."""
    return {name: own[name] for name in (*PASSED, *passed) if name in own} | dict(given)


def arguments_of(command: Sequence[str], *, prompt: str) -> list[str]:
    """The words of a command, with the prompt where it wants it; no shell ever reads them."""
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

    However this is left, the program and its children are gone: its session, and what left that session while its
    parent lived.

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
            # What is in the pipe already; a child that still runs keeps it open.
            await asyncio.wait({reading}, timeout=0.1)
    finally:
        # A task of its own: a caller that is cancelled while it waits still leaves no process behind.
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
    """Ask the program and its children to end, then end them."""
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
