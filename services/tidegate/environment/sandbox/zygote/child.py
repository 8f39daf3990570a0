"""The child side of a run: its first process, which reaps, and the confined process of the program."""

import math
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from tidegate.environment.sandbox.zygote import kernel, landlock, syscall_filter
from tidegate.environment.sandbox.zygote.tree import SCRATCH

NOBODY = 65534
# The monitor and the first process count towards the program's limit as well: they are the same user.
_OWN_PROCESSES = 2
OPEN_FILES_MAX = 64
_SIGNALS_PENDING_MAX = 256


def become_program(
    *, limits: dict[str, float], stdio: tuple[int, int, int], report: socket.socket, landlock_abi: int
) -> None:
    """Fork the program's process; returns in that one only, confined, with the three descriptors of ``stdio``.

    ``report`` carries to the monitor a failure (``E`` and its text) or the program's wait status (``S`` and a number).
    """
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if not report.recv(1):  # the monitor died before the line above, and nothing else would end this run
            os._exit(1)
        os.setsid()
        _mount_scratch(limits)
        program_pid = os.fork()
        if program_pid == 0:
            confine(limits, stdio, report, landlock_abi=landlock_abi, num_own_processes=_OWN_PROCESSES)
            return
    except OSError as error:
        report.send(f"E{error.filename}: {error.strerror}".encode())
        os._exit(1)
    _reap(program_pid, stdio, report)


def _mount_scratch(limits: dict[str, float]) -> None:
    """A private folder of the run, in memory, that vanishes with its mount namespace."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.set_hostname(b"sandbox")
    # One more inode, for the folder itself.
    options = (
        f"size={int(limits['scratch_bytes'])},nr_inodes={int(limits['files']) + 1}"
        f",mode=0700,uid={NOBODY},gid={NOBODY}"
    )
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", SCRATCH, kind="tmpfs", flags=flags, options=options)
    os.chdir(SCRATCH)


def _reap(program_pid: int, stdio: tuple[int, int, int], report: socket.socket) -> NoReturn:
    """Wait for the program and exit; the kernel then kills every process left in the pid namespace."""
    for descriptor in stdio:
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == program_pid:
            report.send(f"S{os.waitstatus_to_exitcode(status)}".encode())
            os._exit(0)


def confine(
    limits: dict[str, float],
    stdio: tuple[int, int, int],
    report: socket.socket,
    *,
    landlock_abi: int,
    num_own_processes: int,
    drop_capabilities: Callable[[], None] = kernel.drop_capabilities,
) -> None:
    """Confine this process; the filter of system calls comes last, as it forbids the other steps.

    ``num_own_processes``: those of the sandbox that count towards the program's limit.
    """
    # A separate process group: killing it must not reach the monitor, which is outside of the pid namespace.
    os.setsid()
    for number, descriptor in enumerate(stdio):
        os.dup2(descriptor, number)
    os.closerange(3, report.fileno())
    os.closerange(report.fileno() + 1, 1 << 20)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if landlock_abi:
        landlock.restrict(abi=landlock_abi, scratch=SCRATCH)
    _set_limits(limits, num_own_processes=num_own_processes)
    drop_capabilities()
    os.environ.clear()
    syscall_filter.restrict()
    report.close()


def _set_limits(limits: dict[str, float], *, num_own_processes: int) -> None:
    """Limits that the kernel enforces per process. The monitor limits CPU time; this limit covers a starved monitor."""
    cpu_s = math.ceil(limits["cpu_s"]) + 1
    values = {
        resource.RLIMIT_AS: int(limits["memory_bytes"]),
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_NPROC: int(limits["processes"]) + num_own_processes,
        resource.RLIMIT_FSIZE: int(limits["scratch_bytes"]),
        resource.RLIMIT_NOFILE: OPEN_FILES_MAX,
        resource.RLIMIT_SIGPENDING: _SIGNALS_PENDING_MAX,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    for kind, value in values.items():
        _, hard = resource.getrlimit(kind)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))
