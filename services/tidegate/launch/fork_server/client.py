"""The supervisor's side of the fork server: starts services by fork, or as programs where that fails."""

import asyncio
import os
import signal
import socket

from tidegate.core.errors import UnavailableError
from tidegate.launch.fork_server.messages import GO, Configure, Fork, encode_request
from tidegate.launch.fork_server.preloading import take_fork_server
from tidegate.launch.fork_server.server import TITLE
from tidegate.launch.live_run import FORK_SERVER
from tidegate.launch.programs import (
    ProcessSpec,
    RunningProcess,
    environment_of,
    open_log,
    start_program,
)
from tidegate.runtime.parent_death import adopt_orphans

# Between a request and the pid of the process, while the fork server may be loading a library.
REPLY_TIMEOUT_S = 10.0
PID_BYTES_MAX = 32


class ForkedProcess:
    """A child of this process that another one forked, watched through its pidfd."""

    def __init__(self, pid: int) -> None:
        """Watch the child ``pid`` on the running event loop."""
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    async def wait(self) -> int:
        """Wait for its end and return its exit code."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()


class ServiceStarter:
    """Starts the processes of a platform: services by the fork server while there is one, the rest as programs."""

    def __init__(self, *, title: str, modules: list[str]) -> None:
        """``title`` completes the title of the fork server; ``modules`` are what this run's services need besides."""
        self._configure = Configure(title=f"{TITLE} {title}", modules=modules)
        self._control: socket.socket | None = None
        self._server: RunningProcess | None = None
        self.is_ready = False

    async def start(self, spec: ProcessSpec) -> RunningProcess:
        """Start a process; the fork server itself is the one named ``FORK_SERVER``."""
        if spec.name == FORK_SERVER:
            return await self._start_server(spec)
        if spec.serve and self._control is not None:
            try:
                return await self._fork(spec, self._control)
            except UnavailableError:
                self._give_up()
        return await start_program(spec)

    async def _start_server(self, spec: ProcessSpec) -> RunningProcess:
        """The fork server that this process forked when it began; a new one after that has ended."""
        self._give_up()
        early = take_fork_server()
        if early is not None:
            pid, ours = early
            self._server = ForkedProcess(pid)
        else:
            adopt_orphans()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [*spec.command, str(theirs.fileno())]
                self._server = await start_program(
                    ProcessSpec(spec.name, command, spec.log, spec.environment),
                    descriptors=[theirs.fileno()],
                )
        ours.setblocking(False)
        self._control = ours
        log = open_log(spec.log)
        try:
            socket.send_fds(ours, [encode_request(self._configure)], [log])
        finally:
            os.close(log)
        asyncio.get_running_loop().add_reader(ours, self._on_answer, ours)
        return self._server

    def _on_answer(self, control: socket.socket) -> None:
        """The fork server is ready, or has ended."""
        try:
            self.is_ready = bool(control.recv(PID_BYTES_MAX))
        except OSError:
            self.is_ready = False
        if not self.is_ready:
            self._close(control)

    def _close(self, control: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(control)
        control.close()
        if self._control is control:
            self._control = None

    def _give_up(self) -> None:
        """Use this fork server no longer, and end it if it still runs: the supervisor starts another."""
        self.is_ready = False
        if self._control is not None:
            self._close(self._control)
        if self._server is not None and self._server.returncode is None:
            os.kill(self._server.pid, signal.SIGKILL)

    async def _fork(self, spec: ProcessSpec, control: socket.socket) -> ForkedProcess:
        """Have a service forked.

        Raises:
            UnavailableError: the fork server ended, or did not answer in time.
        """
        request = Fork(arguments=spec.serve, environment=environment_of(spec))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = open_log(spec.log)
        with ours:
            ours.setblocking(False)
            try:
                socket.send_fds(control, [encode_request(request)], [log, theirs.fileno()])
                theirs.close()
                async with asyncio.timeout(REPLY_TIMEOUT_S):
                    pid = await asyncio.get_running_loop().sock_recv(ours, PID_BYTES_MAX)
                if not pid:
                    raise UnavailableError("The fork server could not fork")
                forked = ForkedProcess(int(pid))
                ours.send(GO)
            except (OSError, TimeoutError) as error:
                raise UnavailableError("The fork server does not answer", why=str(error)) from error
            finally:
                theirs.close()
                os.close(log)
        return forked
