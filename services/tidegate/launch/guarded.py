"""Puts a process under the parent-death guard of its supervisor: the kernel kills it when the supervisor dies.

As a program (``python -m tidegate.launch.guarded PROGRAM ARGUMENTS``) it becomes PROGRAM, which stays guarded, and
which guards the processes that it starts in turn. Linux only; elsewhere a supervisor that is killed outright leaves its
children to the next ``up`` of the folder.
"""

import os
import signal
import sys

from tidegate.runtime.own_cores import use_own_cores
from tidegate.runtime.parent_death import guard

SUPERVISOR_VARIABLE = "TIDEGATE_SUPERVISOR_PID"


def guard_by_supervisor() -> None:
    """Ask the kernel for SIGKILL when the supervisor that the environment names is gone; without one, do nothing.

    SIGKILL and not SIGTERM: a broker or a peer that died with the supervisor could make a drain wait for ever, and
    every service survives a kill by design (I4).
    """
    supervisor = os.environ.get(SUPERVISOR_VARIABLE)
    if supervisor is None or not sys.platform.startswith("linux"):
        return
    if not guard(int(supervisor), signal.SIGKILL):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    guard_by_supervisor()
    use_own_cores()
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
    os.execv(sys.argv[1], sys.argv[1:])  # the supervisor names the program
