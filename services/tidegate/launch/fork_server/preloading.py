"""What services share, loaded once in the process of ``tidegate up``, which then forks the fork server off.

This happens first, while the process has one thread and no connection; the command line and the view load afterwards.
"""

import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from tidegate.launch.services import SERVICES
from tidegate.runtime.lean_imports import load_lean_libraries
from tidegate.runtime.parent_death import adopt_orphans, guard

# Many processes with little work each: a second thread in one only takes the core of another.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Loaded by every service and by the supervisor: before the first service is forked.
FIRST_MODULES = ("tidegate.runtime.process", "tidegate.launch.serve", "tidegate.launch.fork_server.server")
# It takes seconds to load torch, which no other service shares, so it is forked first and loads its own modules.
SLOWEST_SERVICE = "learner"
# Loaded while no request waits.
SHARED_MODULES = tuple(
    f"{entry.package}.main" for service, entry in SERVICES.items() if service != SLOWEST_SERVICE
)

# The fork server that ``fork_server_first`` made: its pid and the supervisor's end of its socket, until they are taken.
_made: list[tuple[int, socket.socket]] = []


def is_supported() -> bool:
    """Whether this system can give the children of other processes to the supervisor, and watch them."""
    return sys.platform.startswith("linux") and hasattr(os, "pidfd_open")


def fork_server_first() -> None:
    """Load what services share and fork the fork server; the caller becomes the supervisor.

    Does nothing where a fork would not be safe: on other systems, or if a library has started a thread. Does not
    return in the forked services, which run and exit.
    """
    if not is_supported():
        return
    load_shared()
    if _num_threads() > 1 or not adopt_orphans():
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    supervisor_pid = os.getpid()
    # The fork server shares what was loaded so far with this process too, as long as neither writes to it.
    gc.collect()
    gc.freeze()
    pid = os.fork()
    if pid:
        theirs.close()
        _made.append((pid, ours))
        return
    ours.close()
    os.setsid()
    if not guard(supervisor_pid, signal.SIGKILL):
        os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    serve_forks(theirs, supervisor_pid=supervisor_pid, modules=SHARED_MODULES)


def take_fork_server() -> tuple[int, socket.socket] | None:
    """The pid and the socket of the fork server that ``fork_server_first`` made; None without one, or taken."""
    return _made.pop() if _made else None


def load_shared() -> None:
    """Load what every service needs."""
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    # Definitions stay for good, so collecting garbage while they load is wasted.
    gc.disable()
    load_lean_libraries()
    for module in FIRST_MODULES:
        import_module(module)
    gc.enable()


def serve_forks(control: socket.socket, *, supervisor_pid: int, modules: Sequence[str]) -> NoReturn:
    """Be the fork server; in each process that it forks, be the service."""
    from tidegate.launch.fork_server.server import ForkServer
    from tidegate.launch.serve import main

    arguments = ForkServer(control, supervisor_pid=supervisor_pid, modules=modules).run()
    sys.exit(main(arguments))


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))
