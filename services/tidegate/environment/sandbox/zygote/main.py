"""The zygote: isolates itself once, then forks a monitor for each run that the worker requests, until the worker ends.

It runs in a fresh interpreter, so that nothing of the worker (memory, environment, descriptors) is in it.
"""

import gc
import json
import os
import selectors
import signal
import socket
import sys

from tidegate.environment.sandbox.zygote import kernel, landlock, monitor, program, syscall_filter, tree
from tidegate.environment.sandbox.zygote.child import NOBODY


def _shown() -> dict[str, str]:
    """``tree.sources``, from a child that loads every extension module and ends."""
    read_fd, write_fd = os.pipe()
    child_pid = os.fork()
    if child_pid == 0:
        os.close(read_fd)
        with os.fdopen(write_fd, "w") as answer:
            json.dump(tree.sources(), answer)
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as answer:
        text = answer.read()
    os.waitpid(child_pid, 0)
    shown: dict[str, str] = json.loads(text)
    return shown


def _isolate() -> int:
    """Enter a private file tree as user nobody; returns a descriptor of the machine's /proc, for the monitors.

    Raises:
        OSError: the kernel refused a step; the error names it.
    """
    machine = os.uname().machine
    if machine not in syscall_filter.ARCHITECTURES:
        raise OSError(0, f"no filter of system calls for {machine}", "seccomp")
    shown = _shown()
    proc_fd = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        kernel.unshare(kernel.CLONE_NEWNS)
        tree.enter(shown)
        # The kernel holds no limit on root's processes, in any namespace.
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.prctl(
            kernel.PR_SET_DUMPABLE, 1
        )  # or the maps of the runs' user namespaces could not be written
    else:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        monitor.map_user(proc_fd, uid=uid, gid=gid)
        tree.enter(shown)
    return proc_fd


def main(control_fd: int, part_bytes_max: int) -> None:
    """Serve runs until the control socket ends; returns only in a program's process, once the program ended."""
    control = socket.socket(fileno=control_fd)
    os.umask(0o022)  # the worker's may hide the tree, which root makes, from the user that programs run as
    kernel.one_arena()
    for name in program.IMPORTED_BEFORE:
        __import__(name)
    selectors.DefaultSelector = selectors.PollSelector  # asyncio's; it was chosen before epoll is refused
    sys.executable = os.path.realpath(sys.executable)  # the links that lead to it are not in the tree
    try:
        proc_fd = _isolate()
    except OSError as error:
        refused = {"step": str(error.filename), "errno": error.errno, "error": str(error.strerror)}
        control.send(json.dumps({"refused": refused}).encode())
        sys.exit(1)
    sys.path = [tree.standard_library(), os.path.join(tree.standard_library(), "lib-dynload")]
    gc.freeze()  # a collection in a run would touch, and so copy, every object that was here before
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # monitors are not waited for
    landlock_abi = landlock.version()
    control.send(json.dumps({"landlock_abi": landlock_abi}).encode())
    program.run(_serve(control, proc_fd, part_bytes_max, landlock_abi))


def _serve(control: socket.socket, proc_fd: int, part_bytes_max: int, landlock_abi: int) -> bytes:
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(control, 16, 1)
        if not message:
            os._exit(0)
        (connection_fd,) = descriptors
        try:
            monitor_pid = os.fork()
        except OSError:
            monitor_pid = -1  # the worker sees its connection end, and raises
        if monitor_pid == 0:
            control.close()
            connection = socket.socket(fileno=connection_fd)
            return monitor.serve_run(
                connection, proc_fd, part_bytes_max=part_bytes_max, landlock_abi=landlock_abi
            )
        os.close(connection_fd)
