"""What a child process of own code does before it loads the code: pipes of its own, bounds, and a stack on demand."""

import faulthandler
import os
import resource
import signal
import sys
from typing import BinaryIO

# The service asks by it where the code hangs, before it kills the process.
SHOW_STACK = signal.SIGUSR1


def own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes of questions and answers; the code reads nothing, and prints to standard error."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return questions, answers


def limit_memory(num_bytes: int) -> None:
    """Let the process have this much data; 0 is no limit."""
    if num_bytes:
        _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def show_stacks() -> None:
    """Write the stack to standard error upon a crash, and upon ``SHOW_STACK``."""
    faulthandler.enable()
    faulthandler.register(SHOW_STACK)


def end(code: int) -> None:
    """End the process; threads and exit handlers of the code do not hold it."""
    sys.stderr.flush()
    os._exit(code)
