"""A pod's container on this machine: the runner in namespaces of its own, as a user without privileges.

Arguments: user id, bytes of scratch, and the command, whose first word is replaced by this interpreter.
"""

import os
import sys
from pathlib import Path

from tidegate.environment.sandbox.zygote import kernel, monitor

# The interpreter may lie below a folder that only its owner enters.
PREFIX = "/mnt"


def enter(user_id: int, scratch_bytes: int) -> None:
    """Become the first process of a container."""
    proc_fd = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    namespaces = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
    uid, gid = os.getuid(), os.getgid()
    if uid != 0:
        kernel.unshare(namespaces | kernel.CLONE_NEWUSER)
        monitor.map_user(proc_fd, uid=uid, gid=gid)
    else:
        kernel.unshare(namespaces)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    kernel.mount(sys.base_prefix, PREFIX, flags=kernel.MS_BIND | kernel.MS_REC)
    first_pid = os.fork()
    if first_pid:
        _, status = os.waitpid(first_pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    kernel.mount("proc", "/proc", kind="proc")
    kernel.mount("tmpfs", "/tmp", kind="tmpfs", options=f"size={scratch_bytes},mode=1777")
    kernel.mount("tmpfs", "/dev/shm", kind="tmpfs", options="size=4k,mode=0555")
    if uid == 0:
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)


if __name__ == "__main__":
    enter(int(sys.argv[1]), int(sys.argv[2]))
    python = f"{PREFIX}/bin/{Path(os.path.realpath(sys.executable)).name}"
    os.execve(python, [python, *sys.argv[4:]], {"PYTHONHASHSEED": "0", "POD": "1"})
