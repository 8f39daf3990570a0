"""What all services share, loaded once in the process of ``tidegate up``, which then forks the fork servers off.

This happens while the process has one thread and no connection; what draws the view loads afterwards.
"""

import gc
import os
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import NoReturn

from setproctitle import setproctitle

from tidegate.launch.fork_server.kinds import PRELOADED, title_of
from tidegate.launch.inherited_environment import inherited
from tidegate.runtime.lean_imports import load_lean_libraries
from tidegate.runtime.parent_death import adopt_orphans, guard
from tidegate.runtime.process_end import end_process
from tidegate.runtime.threads import num_threads

# Many processes with little work each: a second thread in one only takes the core of another.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Loaded by every service and by the supervisor.
SHARED_MODULES = ("tidegate.runtime.process", "tidegate.launch.serve", "tidegate.launch.fork_server.server")

# The fork servers that ``fork_servers_first`` made, by name: the pid and the supervisor's end of the socket.
_made: dict[str, tuple[int, socket.socket]] = {}


def is_supported() -> bool:
    """Whether this system can give the children of other processes to the supervisor, and watch them."""
    return sys.platform.startswith("linux") and hasattr(os, "pidfd_open")


def can_fork() -> bool:
    """Whether this process can fork safely: no library has started a thread, which a fork would not have."""
    return is_supported() and num_threads() == 1


def prepare() -> None:
    """Prepare this process to be forked, before it loads a library: one thread, and no collection of garbage.

    The lean libraries are loaded now, because nearly every module imports one of them.
    """
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    # Definitions stay for good, so collecting garbage while they load is wasted.
    gc.disable()
    load_lean_libraries()


def fork_servers_first(pass_env: tuple[str, ...]) -> None:
    """Fork the fork servers, once ``load_shared`` has returned; the caller becomes the supervisor.

    ``pass_env``: the variables that they inherit by name.

    Does nothing where a fork would not be safe: on other systems, or if a library has started a thread. Does not
    return in the forked services, which run and exit.
    """
    if not can_fork() or not adopt_orphans():
        return
    # The fork servers also share the pages loaded so far with this process, until one of them is written to.
    gc.collect()
    gc.freeze()
    for name in PRELOADED:
        _fork_server(name, pass_env)


def take_fork_server(name: str) -> tuple[int, socket.socket] | None:
    """The pid and the socket of a fork server that ``fork_servers_first`` made; None without one, or taken."""
    return _made.pop(name, None)


def end_unused_fork_servers() -> None:
    """End the fork servers that the supervisor did not take."""
    while _made:
        _, (pid, control) = _made.popitem()
        control.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def load_shared() -> None:
    """Load what every service needs."""
    prepare()
    for module in SHARED_MODULES:
        import_module(module)
    gc.enable()


def serve_forks(name: str, control: socket.socket, *, supervisor_pid: int) -> NoReturn:
    """Be a fork server; in each process that it forks, be the service."""
    from tidegate.launch import serve
    from tidegate.launch.fork_server.server import ForkServer
    from tidegate.runtime import exit_codes

    try:
        exit_code = serve.main(ForkServer(name, control, supervisor_pid=supervisor_pid).run())
    except BaseException:  # the supervisor's code must not see it: its cleanup ends processes by their ids
        traceback.print_exc()
        exit_code = exit_codes.FAILED
    end_process(exit_code)


def _fork_server(name: str, pass_env: tuple[str, ...]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    supervisor_pid = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        _made[name] = (pid, ours)
        return
    ours.close()
    while _made:
        _made.popitem()[1][1].close()
    begin_child(supervisor_pid, pass_env, title=title_of(name))
    serve_forks(name, theirs, supervisor_pid=supervisor_pid)


def begin_child(supervisor_pid: int, pass_env: tuple[str, ...], *, title: str) -> None:
    """In a process that was just forked: a session of its own, without standard input, killed with the supervisor.

    Its environment is what a process of a run inherits, besides the variables ``pass_env``. Its ``title`` is written
    over the parent's environment, which the system would show as its own.

    Ends the process where the supervisor is gone already.
    """
    os.setsid()
    setproctitle(title)
    kept = inherited(os.environ, pass_env)
    os.environ.clear()
    os.environ.update(kept)
    if not guard(supervisor_pid, signal.SIGKILL):
        os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
