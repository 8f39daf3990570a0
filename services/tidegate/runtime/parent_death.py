"""The parent-death guard: the kernel signals a process when its parent dies, however that died.

Linux only; elsewhere a parent that is killed outright leaves its children behind. Standard library only, because
programs that live as long as a server use it.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def guard(parent_pid: int, number: signal.Signals) -> bool:
    """Ask the kernel for a signal once the parent dies; False if the parent died before it could be asked."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    return os.getppid() == parent_pid


def adopt_orphans() -> bool:
    """Make this process the next parent of each descendant whose own parent ends; False where that is impossible."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
