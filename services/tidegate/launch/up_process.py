"""``tidegate up`` in a process of its own, for programs that start a run and outlive it."""

import signal
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import IO

from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.runtime.python_program import python_program


@contextmanager
def up_process(
    arguments: Sequence[str], *, output: "int | IO[bytes]", drain_s: float
) -> "Generator[subprocess.Popen[str]]":
    """The process; at the end of the block it is told to drain, and killed after ``drain_s``.

    ``arguments``: of the command. ``output``: where both of its outputs go, as ``subprocess`` takes it.
    """
    process = subprocess.Popen(
        python_program("tidegate.cli.main", "up", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=dies_with_this_process(),  # it allocates and imports nothing
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=drain_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
