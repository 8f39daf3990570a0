"""A fork server: a process of one thread that has loaded Tidegate's modules and forks a service for each request.

Consumes requests of the supervisor; produces service processes; waits for requests, and meanwhile loads more; ends
with the supervisor. A forked service is a child of the supervisor and not of this process: an intermediate process
forks it and exits, which makes the kernel give it to the supervisor (``adopt_orphans``). So its exit code, its CPU
time and its parent-death guard are the supervisor's, and a fork server that is killed takes no service with it.

gRPC allows a fork before its first channel or server; libraries are loaded here, and connections are opened after.
"""

import gc
import os
import select
import signal
import socket
import sys
from collections import deque
from importlib import import_module

from setproctitle import setproctitle

from tidegate.launch.fork_server.kinds import PRELOADED, title_of
from tidegate.launch.fork_server.messages import GO, MESSAGE_BYTES_MAX, READY, Configure, Fork, decode_request
from tidegate.runtime.memory import release_file_pages
from tidegate.runtime.parent_death import guard
from tidegate.runtime.threads import num_threads

NUM_DESCRIPTORS_MAX = 2


class ForkServer:
    """Answers requests on ``control`` until the supervisor closes it."""

    def __init__(self, name: str, control: socket.socket, *, supervisor_pid: int) -> None:
        """``name`` says what to load while no request waits (``PRELOADED``)."""
        self._name = name
        self._control = control
        self._supervisor_pid = supervisor_pid
        self._to_load = deque(PRELOADED[name])

    def run(self) -> list[str]:
        """Serve requests. Returns in a forked service: the arguments of ``tidegate serve``; otherwise it exits."""
        setproctitle(title_of(self._name))  # where it was started as a program
        # What is loaded here lives as long as the process; a service collects garbage again.
        gc.disable()
        while True:
            if self._to_load and not _has_message(self._control):
                _load(self._to_load.popleft())
                continue
            if not _has_message(self._control):
                release_file_pages()
            data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, NUM_DESCRIPTORS_MAX)
            if not data:
                os._exit(0)
            match decode_request(data):
                case Configure() as request:
                    self._configure(request, log=descriptors[0])
                case Fork() as request:
                    if self._fork(request, log=descriptors[0], link=socket.socket(fileno=descriptors[1])):
                        return request.arguments

    def _configure(self, request: Configure, *, log: int) -> None:
        setproctitle(request.title)
        _redirect_output(log)
        self._control.send(READY)

    def _fork(self, request: Fork, *, log: int, link: socket.socket) -> bool:
        """Fork a service through an intermediate process; returns whether this process is the service."""
        for module in request.modules:
            _load(module)
        # The collector writes into every object that it looks at, which would copy the shared page.
        gc.freeze()
        released, release = os.pipe()
        intermediate = _fork_if_safe()
        if intermediate == 0:
            _leave_child_to_supervisor()
            os.close(release)
            self._control.close()
            self._become(request, log=log, link=link, released=released)
            return True
        if intermediate is not None:
            os.waitpid(intermediate, 0)
        # The intermediate process has ended, so the service has its new parent and may go on.
        for descriptor in (released, release, log):
            os.close(descriptor)
        link.close()
        return False

    def _become(self, request: Fork, *, log: int, link: socket.socket, released: int) -> None:
        """Make this process the service of ``request``, once the supervisor wants it."""
        os.read(released, 1)
        os.close(released)
        if not guard(self._supervisor_pid, signal.SIGKILL):
            os._exit(1)
        os.setsid()
        _redirect_output(log)
        setproctitle(" ".join(["tidegate", "serve", *request.arguments]))
        os.environ.clear()
        os.environ.update(request.environment)
        if not _is_wanted(link):
            os._exit(0)
        gc.enable()


def _fork_if_safe() -> int | None:
    """``os.fork``; None where it fails or a library has started a thread. The supervisor then starts a program."""
    if num_threads() > 1:
        sys.stderr.write(f"cannot fork: {num_threads()} threads\n")
        return None
    try:
        return os.fork()
    except OSError as error:  # no more processes, or no memory
        sys.stderr.write(f"cannot fork: {error}\n")
        return None


def _leave_child_to_supervisor() -> None:
    """Fork once more; the intermediate process exits here, its child returns."""
    try:
        child = os.fork()
    except OSError:
        child = -1
    if child != 0:
        os._exit(0)


def _is_wanted(link: socket.socket) -> bool:
    """Report this process to the supervisor; returns whether it still waited for it."""
    with link:
        try:
            link.send(str(os.getpid()).encode())
            return link.recv(len(GO)) == GO
        except OSError:
            return False


def _has_message(control: socket.socket) -> bool:
    return bool(select.select([control], [], [], 0.0)[0])


def _load(module: str) -> None:
    try:
        import_module(module)
    except Exception as error:  # the service that needs it reports it where its user looks
        sys.stderr.write(f"cannot load {module}: {error!r}\n")


def _redirect_output(log: int) -> None:
    """Standard output and error go to ``log``, which is closed."""
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
