"""Ties a process to its supervisor: the kernel ends it when the supervisor dies, however that died.

As a program (``python -m tidegate.launch.leash PROGRAM ARGUMENTS``) it becomes PROGRAM, which keeps the tie, and to
which the processes that PROGRAM starts are tied in turn. Linux only; elsewhere a supervisor that is killed outright
leaves its children to the next ``up`` of the folder.
"""

import os
import signal
import sys

SUPERVISOR_VARIABLE = "TIDEGATE_SUPERVISOR_PID"
_PR_SET_PDEATHSIG = 1


def tie_to_supervisor() -> None:
    """Ask the kernel for SIGKILL when the supervisor that the environment names is gone; without one, do nothing.

    SIGKILL and not SIGTERM: a broker or a peer that died with the supervisor could make a drain wait for ever, and
    every service survives a kill by design (I4).
    """
    supervisor = os.environ.get(SUPERVISOR_VARIABLE)
    if supervisor is None or not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have died before the kernel knew.
    if os.getppid() != int(supervisor):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    tie_to_supervisor()
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
    os.execv(sys.argv[1], sys.argv[1:])  # the supervisor names the program
