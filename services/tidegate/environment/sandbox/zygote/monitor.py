"""The monitor of one run, outside of its namespaces: makes them, enforces the limits that need it, and answers.

Each run has one monitor process. It dies with the zygote, and the run dies with it.
"""

import os
import signal
import socket
import time
from typing import Any, NoReturn

from tidegate.environment.sandbox.zygote import child, frames, kernel, usage
from tidegate.environment.sandbox.zygote.supervision import Output, limit_of, supervise

_ANSWER_TIMEOUT_S = 5.0


def map_user(proc_fd: int, *, uid: int, gid: int) -> None:
    """In a new user namespace, make ``uid`` and ``gid`` of the one around it nobody. No other user exists in it."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{child.NOBODY} {uid} 1"),
        ("gid_map", f"{child.NOBODY} {gid} 1"),
    ):
        path = f"self/{name}"
        map_fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc_fd)
        try:
            os.write(map_fd, text.encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(map_fd)


def serve_run(connection: socket.socket, proc_fd: int, *, part_bytes_max: int, landlock_abi: int) -> bytes:
    """Serve the run requested on ``connection`` and exit; returns only in the program's process, with its code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        connection.settimeout(_ANSWER_TIMEOUT_S)
        head, (code, stdin) = frames.receive(connection, part_bytes_max=part_bytes_max)
    except (OSError, ValueError, EOFError):
        os._exit(1)  # the worker is gone, and no answer is needed
    started_at_s = time.monotonic()
    limits: dict[str, float] = head
    pipes = [os.pipe() for _ in range(3)]
    (stdin_read, stdin_write), (stdout_read, stdout_write), (stderr_read, stderr_write) = pipes
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(
            kernel.CLONE_NEWUSER
            | kernel.CLONE_NEWPID
            | kernel.CLONE_NEWNET
            | kernel.CLONE_NEWIPC
            | kernel.CLONE_NEWUTS
        )
        map_user(proc_fd, uid=uid, gid=gid)
        meter = usage.Meter(proc_fd, socket_bytes=ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        first_pid = os.fork()
    except OSError as error:
        _answer(connection, {"failed": f"{error.filename}: {error.strerror}", "errno": error.errno})
    if first_pid == 0:
        connection.close()
        ours.close()
        for descriptor in (proc_fd, stdin_write, stdout_read, stderr_read):
            os.close(descriptor)
        child.become_program(
            limits=limits,
            stdio=(stdin_read, stdout_write, stderr_write),
            report=theirs,
            landlock_abi=landlock_abi,
        )
        return code
    theirs.close()
    for descriptor in (stdin_read, stdout_write, stderr_write):
        os.close(descriptor)
    kept_max = int(limits["output_bytes"])
    outputs = (Output(stdout_read, kept_max=kept_max), Output(stderr_read, kept_max=kept_max))
    ours.send(b"g")
    _finish(
        connection, _SandboxRun(first_pid, outputs, ours, meter), limits, stdin, stdin_write, started_at_s
    )


class _SandboxRun:
    """A run in progress, as its monitor knows it."""

    def __init__(
        self, first_pid: int, outputs: tuple[Output, Output], report: socket.socket, meter: usage.Meter
    ) -> None:
        self.first_pid = first_pid
        self.ended_fd = os.pidfd_open(first_pid)
        self.outputs = outputs
        self.report = report
        self.cpu_s = 0.0
        self._meter = meter

    def has_ended(self) -> bool:
        """Whether ``ended_fd`` became readable for the end of the run; a pidfd does so for no other reason."""
        return True

    def spent(self, limits: dict[str, float]) -> str | None:
        """The limit that all processes together have reached, if any."""
        self.cpu_s, memory_bytes = self._meter.of_tree(self.first_pid)
        if self.cpu_s >= limits["cpu_s"]:
            return "cpu"
        return "memory" if memory_bytes > limits["memory_bytes"] else None

    def end(self) -> None:
        """Kill all that is left of the run, and wait until it is dead."""
        os.kill(self.first_pid, signal.SIGKILL)
        _, _, used = os.wait4(self.first_pid, 0)
        self.cpu_s = max(self.cpu_s, used.ru_utime + used.ru_stime)


def _finish(
    connection: socket.socket,
    run: _SandboxRun,
    limits: dict[str, float],
    stdin: bytes,
    stdin_write: int,
    started_at_s: float,
) -> NoReturn:
    limit = supervise(
        run,
        limits,
        (stdin, stdin_write),
        deadline_s=started_at_s + limits["wall_s"],
        worker_fd=connection.fileno(),
    )
    run.end()
    for output in run.outputs:
        output.drain()
    report = _end_report(run.report)
    if report.startswith("E"):
        _answer(connection, {"failed": report[1:]})
    status = int(report[1:]) if report.startswith("S") else -signal.SIGKILL
    if limit is None:
        limit = limit_of(run, limits, status)
    stdout, stderr = run.outputs
    head = {
        "exit_status": status,
        "limit": limit,
        "stdout_bytes": stdout.num_bytes,
        "stderr_bytes": stderr.num_bytes,
        "cpu_s": run.cpu_s,
        "wall_s": time.monotonic() - started_at_s,
    }
    _answer(connection, head, bytes(stdout.kept), bytes(stderr.kept))


def _end_report(report: socket.socket) -> str:
    """The child's report of its end; empty if it was killed."""
    report.setblocking(False)
    try:
        return report.recv(4096).decode(errors="replace")
    except OSError:
        return ""


def _answer(connection: socket.socket, head: dict[str, Any], *parts: bytes) -> NoReturn:
    try:
        connection.settimeout(_ANSWER_TIMEOUT_S)
        frames.send(connection, head, parts)
    except OSError:
        os._exit(1)
    os._exit(0)
