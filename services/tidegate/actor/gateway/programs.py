"""An agent's process: with a minimal environment, a deadline, and a kill that includes its children."""

import asyncio
import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
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
    deadline_s: float | None,
    kill_grace_s: float,
) -> ProgramEnd:
    """Run a program until it ends, or its episode has and its grace is over, or its deadline (None: it has none).

    On every exit, also by cancellation and while it still starts, this kills the program and its children: its session,
    and children that left the session while their parent lived.

    Raises:
        UnavailableError: it cannot be started.
    """
    starting = asyncio.create_task(_start(arguments, environment))
    tail = bytearray()
    reading: asyncio.Task[None] | None = None
    try:
        # Shielded: a cancelled start would leave a process that nobody knows.
        process = await asyncio.shield(starting)
        assert process.stderr is not None, "stderr is a pipe"
        reading = asyncio.create_task(_keep_last(process.stderr, tail))
        exiting = asyncio.create_task(process.wait())
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
        killing = asyncio.create_task(_end(starting, grace_s=kill_grace_s))
        try:
            await asyncio.shield(killing)
        finally:
            await asyncio.wait({killing})
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
    return ProgramEnd(exit_code, tail.decode(errors="replace"))


async def _start(arguments: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start a program in a session of its own.

    Raises:
        UnavailableError: it cannot be started.
    """
    try:
        return await asyncio.create_subprocess_exec(
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


async def _keep_last(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while data := await stream.read(READ_BYTES):
        tail += data
        del tail[:-STDERR_BYTES_MAX]


async def _end(starting: asyncio.Task[asyncio.subprocess.Process], *, grace_s: float) -> None:
    """Send SIGTERM to the program and its children, then SIGKILL."""
    await asyncio.wait({starting})
    if starting.exception() is not None:
        return
    process = starting.result()
    exiting = asyncio.create_task(process.wait())
    tree = _tree_of(process.pid)
    if process.returncode is None:
        _signal(process.pid, tree, signal.SIGTERM)
        await asyncio.wait({exiting}, timeout=grace_s)
    # A stopped process starts no others, so the tree is complete once all of it is stopped.
    stopped: set[psutil.Process] = set()
    while running := (tree := _with_children(tree)) - stopped:
        _signal(process.pid, running, signal.SIGSTOP)
        stopped |= running
    _signal(process.pid, tree, signal.SIGKILL)
    await asyncio.wait({exiting})


def _tree_of(pid: int) -> set[psutil.Process]:
    try:
        return _with_children({psutil.Process(pid)})
    except psutil.Error:
        return set()


def _with_children(processes: set[psutil.Process]) -> set[psutil.Process]:
    tree = set(processes)
    for process in processes:
        with suppress(psutil.Error):
            tree.update(process.children(recursive=True))
    return tree


def _signal(pid: int, tree: Collection[psutil.Process], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    for process in tree:
        with suppress(psutil.Error):
            process.send_signal(number)
