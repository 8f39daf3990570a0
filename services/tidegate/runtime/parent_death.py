"""The parent-death guard: the kernel signals a process when its parent dies, however that died.

Linux only; elsewhere a parent that is killed outright leaves its children behind. Standard library only, because
programs that live as long as a server use it.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def guard(parent_pid: int, number: signal.Signals) -> bool:
    """Ask the kernel for a signal once the parent dies; False if the parent died before it could be asked."""
    if sys.platform.startswith("linux"):
        _libc().prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    return os.getppid() == parent_pid


def dies_with_this_process() -> Callable[[], None]:
    """``preexec_fn`` of a program that is killed once this process is gone; the program must not change its user.

    The kernel watches the thread that starts the program, so that thread has to live as long.
    """
    parent_pid = os.getpid()
    # Nothing is imported between fork and exec.
    libc = _libc() if sys.platform.startswith("linux") else None

    def before_exec() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent_pid:
            os._exit(1)

    return before_exec


def adopt_orphans() -> bool:
    """Make this process the next parent of each descendant whose own parent ends; False where that is impossible."""
    if not sys.platform.startswith("linux"):
        return False
    return _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)
