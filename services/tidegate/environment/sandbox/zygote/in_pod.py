"""The runner in a pod of the sandbox `pods`: the first process of its only container. It serves one run and ends.

It waits for a request on its stdin, forks the program, supervises it, and answers on its stdout. As the first process
of its pid namespace it cannot be killed by the program, which runs as the same user; the kernel also refuses the
program to trace it or to read its memory, because it is not dumpable.
"""

import contextlib
import gc
import os
import resource
import selectors
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from tidegate.environment.sandbox.zygote import child, frames, kernel, landlock, program, syscall_filter, tree
from tidegate.environment.sandbox.zygote.supervision import Output, limit_of, supervise
from tidegate.environment.sandbox.zygote.usage import ProcessMeter

_STDIN, _STDOUT = 0, 1
_READ_BYTES = 1 << 18
# After its answer the runner waits this long for the worker to close the connection, which shows that it arrived.
_READ_DEADLINE_S = 5
_CONNECT_TIMEOUT_S = 1.0
_CAPABILITY_LINES = ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:")


class _Stdin:
    """``frames.Source`` of this process's stdin."""

    def recv(self, size: int, /) -> bytes:
        """See ``frames.Source``."""
        return os.read(_STDIN, size)


def _refusal() -> str:
    """Why this container does not isolate a program from its runner; empty where it does."""
    if os.getpid() != 1:
        return "the runner is not the first process of its container (shareProcessNamespace must be off)"
    if 0 in (os.getuid(), os.geteuid(), os.getgid(), os.getegid()):
        return "the container runs as root (securityContext.runAsUser)"
    if os.uname().machine not in syscall_filter.ARCHITECTURES:
        return f"there is no filter of system calls for {os.uname().machine}"
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        held = [line.split() for line in status if line.startswith(_CAPABILITY_LINES)]
    if not held or any(int(line[1], 16) for line in held):
        return "the container has capabilities (securityContext.capabilities: drop ALL)"
    return ""


class _Run:
    """``supervision.Supervised`` in a container that holds nothing but the runner and the program."""

    def __init__(self, program_pid: int, outputs: tuple[Output, Output], ended_fd: int, proc_fd: int) -> None:
        self.ended_fd = ended_fd
        self.outputs = outputs
        self.cpu_s = 0.0
        self.status: int | None = None
        self._program_pid = program_pid
        self._meter = ProcessMeter(proc_fd)

    def has_ended(self) -> bool:
        os.read(self.ended_fd, 4096)
        self._reap(os.WNOHANG)
        return self.status is not None

    def spent(self, limits: dict[str, float]) -> str | None:
        self._reap(os.WNOHANG)
        alive_s, memory_bytes = self._meter.of_all_but(os.getpid())
        self.cpu_s = max(self.cpu_s, alive_s + _reaped_cpu_s())
        if self.cpu_s >= limits["cpu_s"]:
            return "cpu"
        return "memory" if memory_bytes > limits["memory_bytes"] else None

    def end(self) -> None:
        """Kill every process of the container but this one: its first process cannot be reached by that signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        self._reap(0)
        self.cpu_s = max(self.cpu_s, _reaped_cpu_s())

    def _reap(self, options: int) -> None:
        """Wait for children, orphans of the program among them: all (0), or those that ended (WNOHANG)."""
        pid = -1
        while pid != 0:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid == self._program_pid:
                self.status = os.waitstatus_to_exitcode(status)


def _reaped_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(part_bytes_max: int) -> bytes:
    """Serve one run and exit; returns only in the program's process, with its code."""
    # The first process of a pid namespace gets a signal only if it handles it: SIGTERM ends a runner that waits. While
    # a program runs, which may send any signal, nothing is handled that would end the runner.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    refused = _refusal()
    if not refused:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.one_arena()
        os.umask(0o022)
        for name in program.IMPORTED_BEFORE:
            __import__(name)
        selectors.DefaultSelector = selectors.PollSelector  # as in the zygote
        sys.executable = os.path.realpath(sys.executable)
        sys.path = [tree.standard_library(), os.path.join(tree.standard_library(), "lib-dynload")]
        gc.freeze()
    try:
        head, (code, stdin) = frames.receive(_Stdin(), part_bytes_max=part_bytes_max)
    except (OSError, ValueError, EOFError):
        os._exit(1)  # the worker is gone, and no answer is needed
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if refused:
        _answer({"refused": refused})
    if head.get("reach"):
        _answer({"reached": _reaches_api_server()})
    return _serve(head, code, stdin)


def _serve(limits: dict[str, float], code: bytes, stdin: bytes) -> bytes:
    started_at_s = time.monotonic()
    # SIGCHLD wakes the poll; a handler must be there for it.
    ended_fd, wakeup_fd = os.pipe()
    os.set_blocking(ended_fd, False)
    os.set_blocking(wakeup_fd, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
    proc_fd = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    landlock_abi = landlock.version()
    (stdin_read, stdin_write), (stdout_read, stdout_write), (stderr_read, stderr_write) = (
        os.pipe() for _ in range(3)
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program_pid = os.fork()
    if program_pid == 0:
        ours.close()
        _become_program(limits, (stdin_read, stdout_write, stderr_write), theirs, landlock_abi)
        return code
    theirs.close()
    for descriptor in (stdin_read, stdout_write, stderr_write):
        os.close(descriptor)
    kept_max = int(limits["output_bytes"])
    outputs = (Output(stdout_read, kept_max=kept_max), Output(stderr_read, kept_max=kept_max))
    run = _Run(program_pid, outputs, ended_fd, proc_fd)
    _finish(run, limits, (stdin, stdin_write), ours, started_at_s)


def _become_program(
    limits: dict[str, float], stdio: tuple[int, int, int], report: socket.socket, landlock_abi: int
) -> None:
    """Confine this process, or report why that failed, and exit."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # what it may do with itself and its children
        os.chdir(tree.SCRATCH)
        child.confine(
            limits,
            stdio,
            report,
            landlock_abi=landlock_abi,
            num_own_processes=1,
            drop_capabilities=lambda: None,  # the container has none (_refusal), and no_new_privs is set
        )
    except OSError as error:
        report.send(f"{error.filename}: {error.strerror}".encode())
        os._exit(1)


def _finish(
    run: _Run, limits: dict[str, float], feed: tuple[bytes, int], report: socket.socket, started_at_s: float
) -> NoReturn:
    deadline_s = started_at_s + limits["wall_s"]
    limit = supervise(run, limits, feed, deadline_s=deadline_s, worker_fd=_STDIN)
    run.end()
    for output in run.outputs:
        output.drain()
    failed = report.recv(4096)  # empty: its other end was closed by the last step of the confinement
    if failed:
        _answer({"failed": failed.decode(errors="replace")})
    status = -signal.SIGKILL if run.status is None or limit is not None else run.status
    stdout, stderr = run.outputs
    head = {
        "exit_status": status,
        "limit": limit_of(run, limits, status) if limit is None else limit,
        "stdout_bytes": stdout.num_bytes,
        "stderr_bytes": stderr.num_bytes,
        "cpu_s": run.cpu_s,
        "wall_s": time.monotonic() - started_at_s,
    }
    _answer(head, bytes(stdout.kept), bytes(stderr.kept))


def _reaches_api_server() -> bool:
    """Whether this container connects to the cluster's API server, which no filter forbids the runner itself.

    A network policy that denies everything lets no connection through.
    """
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST", ""),
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _answer(head: dict[str, Any], *parts: bytes) -> NoReturn:
    left = memoryview(frames.packed(head, parts))
    signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(1))
    signal.alarm(_READ_DEADLINE_S)
    while left:
        left = left[os.write(_STDOUT, left) :]
    while os.read(_STDIN, _READ_BYTES):
        continue
    os._exit(0)
