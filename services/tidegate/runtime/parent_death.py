"""The parent-death guard: the kernel signals a process when the process that started it dies, however that died.

Linux only; elsewhere a parent that is killed outright leaves its children behind. Standard library only, because
programs that live as long as a server use it.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def guard(parent_pid: int, number: signal.Signals) -> bool:
    """Ask the kernel for a signal once the parent dies; False if the parent died before it could be asked."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    return os.getppid() == parent_pid
