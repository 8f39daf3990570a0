"""The supervisor's side of the fork servers: starts services by fork, or as programs where that fails."""

import asyncio
import contextlib
import os
import signal
import socket
from dataclasses import dataclass

from tidegate.core.errors import UnavailableError
from tidegate.launch.fork_server.kinds import PRELOADED, title_of
from tidegate.launch.fork_server.messages import GO, Configure, Fork, encode_request
from tidegate.launch.fork_server.preloading import take_fork_server
from tidegate.launch.programs import (
    ProcessSpec,
    RunningProcess,
    environment_of,
    open_log,
    start_program,
)
from tidegate.runtime.parent_death import adopt_orphans

# Between a request and the pid of the process, while the fork server may be loading torch on a busy machine.
REPLY_TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 32


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


@dataclass(slots=True)
class _Server:
    """A fork server in use: its process, and the supervisor's end of its socket; None once it does not answer."""

    process: RunningProcess
    control: socket.socket | None
    is_ready: bool = False


class ServiceStarter:
    """Starts the processes of a platform: services by their fork server while there is one, the rest as programs."""

    def __init__(self, *, title: str) -> None:
        """``title`` completes the titles of the fork servers."""
        self._title = title
        self._servers: dict[str, _Server] = {}

    def is_ready(self, name: str) -> bool:
        """Whether this fork server answers."""
        return name in self._servers and self._servers[name].is_ready

    async def start(self, spec: ProcessSpec) -> RunningProcess:
        """Start a process: a fork server if it is named like one, a service, or another program."""
        if spec.name in PRELOADED:
            return await self._start_server(spec)
        server = self._servers.get(spec.fork_server)
        if server is not None and server.control is not None:
            try:
                return await _fork(spec, server.control)
            except UnavailableError:
                self._end(server)
        return await start_program(spec)

    async def _start_server(self, spec: ProcessSpec) -> RunningProcess:
        """The fork server that this process forked when it began; a new one after that has ended."""
        before = self._servers.pop(spec.name, None)
        if before is not None:
            self._end(before)
        early = take_fork_server(spec.name)
        if early is not None:
            server = _Server(ForkedProcess(early[0]), early[1])
        else:
            server = await _start_server_program(spec)
        self._servers[spec.name] = server
        self._configure(server, spec)
        return server.process

    def _configure(self, server: _Server, spec: ProcessSpec) -> None:
        control = server.control
        assert control is not None
        control.setblocking(False)
        request = Configure(title=f"{title_of(spec.name)} {self._title}")
        log = open_log(spec.log)
        try:
            socket.send_fds(control, [encode_request(request)], [log])
        except OSError:
            self._end(server)
            return
        finally:
            os.close(log)
        asyncio.get_running_loop().add_reader(control, self._on_answer, server)

    def _on_answer(self, server: _Server) -> None:
        """A fork server is ready, or has ended."""
        assert server.control is not None
        try:
            server.is_ready = bool(server.control.recv(ANSWER_BYTES_MAX))
        except OSError:
            server.is_ready = False
        if not server.is_ready:
            self._end(server)

    def _end(self, server: _Server) -> None:
        """Use a fork server no longer, and end it if it still runs: the supervisor starts another."""
        server.is_ready = False
        if server.control is not None:
            asyncio.get_running_loop().remove_reader(server.control)
            server.control.close()
            server.control = None
        if server.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.process.pid, signal.SIGKILL)


async def _start_server_program(spec: ProcessSpec) -> _Server:
    adopt_orphans()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [*spec.command, str(theirs.fileno())]
        program = ProcessSpec(spec.name, command, spec.log, spec.environment, spec.inherits)
        return _Server(await start_program(program, descriptors=[theirs.fileno()]), ours)


async def _fork(spec: ProcessSpec, control: socket.socket) -> ForkedProcess:
    """Have a service forked.

    Raises:
        UnavailableError: the fork server ended, or did not answer in time.
    """
    request = Fork(arguments=spec.serve, modules=spec.modules, environment=environment_of(spec))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = open_log(spec.log)
    with ours:
        ours.setblocking(False)
        try:
            socket.send_fds(control, [encode_request(request)], [log, theirs.fileno()])
            theirs.close()
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                pid = await asyncio.get_running_loop().sock_recv(ours, ANSWER_BYTES_MAX)
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
