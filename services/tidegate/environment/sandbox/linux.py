"""The sandbox on Linux: the worker's side of the zygote.

The first run starts the zygote, as does a run after its death. Each run has a connection to its monitor; when that
connection ends, the run does. Thread-safe; the number of concurrent runs is bounded, further callers wait.
"""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

import tidegate
from tidegate.core.errors import UnavailableError
from tidegate.environment.sandbox.port import (
    CODE_BYTES_MAX,
    STDIN_BYTES_MAX,
    SandboxLimits,
    SandboxResult,
    encoded,
)
from tidegate.environment.sandbox.self_test import break_out
from tidegate.environment.sandbox.unavailable import isolation_unavailable
from tidegate.environment.sandbox.zygote import frames

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 5.0
# Past its deadline a run has this long to be killed and reported; then its connection is closed.
_GRACE_S = 5.0

# No installed packages, no user folder, no modules from the program's folder, no bytecode written.
FLAGS = ("-S", "-s", "-P", "-B", "-X", "utf8")
# Visible to the worker, and not to a program.
_VISIBLE_HERE = ("/etc/passwd", "/proc/self/environ", "/sys", __file__)
_ENTRY = """
import sys
sys.path.insert(0, sys.argv[1])
from tidegate.environment.sandbox.zygote.main import main
main(int(sys.argv[2]), int(sys.argv[3]))
"""


def _start() -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """The zygote's process, and our end of the socket on which it accepts runs."""
    root = str(Path(tidegate.__file__).parents[1])
    part_bytes_max = max(CODE_BYTES_MAX, STDIN_BYTES_MAX)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *FLAGS, "-c", _ENTRY, root, str(theirs.fileno()), str(part_bytes_max)],
                # A program prints the same each time it runs, on any worker.
                env={"PYTHONHASHSEED": "0"},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return process, ours


class _Zygote:
    """A zygote process and the socket on which it accepts runs."""

    def __init__(self) -> None:
        """Start it and wait until it is isolated.

        Raises:
            IsolationUnavailableError: a step of the isolation is refused.
            UnavailableError: it could not be started, or died while it started.
        """
        if sys.platform != "linux":
            raise isolation_unavailable(f"this is {sys.platform}, and only Linux is supported")
        self._sending = threading.Lock()
        try:
            self._process, self._control = _start()
        except OSError as error:  # no descriptor, no memory, no process id
            raise UnavailableError(
                "The sandbox's zygote could not be started", why=str(error), fix="try again"
            ) from error
        try:
            self._await_isolation()
        except BaseException:
            self.close()
            raise

    def _await_isolation(self) -> None:
        self._control.settimeout(_START_TIMEOUT_S)
        try:
            hello = self._control.recv(4096)
        except TimeoutError as error:
            raise UnavailableError(
                "The sandbox's zygote did not start", why=f"{_START_TIMEOUT_S:g} s passed"
            ) from error
        if not hello:
            raise UnavailableError("The sandbox's zygote died while it started", fix="try again")
        refused: dict[str, Any] | None = json.loads(hello).get("refused")
        if refused is not None:
            raise isolation_unavailable(f"{refused['step']}: {refused['error']}")
        self._control.settimeout(_GRACE_S)

    def alive(self) -> bool:
        """Whether it accepts runs."""
        return self._process.poll() is None

    def connect(self) -> socket.socket:
        """A connection to the monitor of a new run.

        Raises:
            OSError: the zygote is gone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs, self._sending:
                socket.send_fds(self._control, [b"run"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    def close(self) -> None:
        """End it; its runs die with it."""
        self._control.close()
        self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)


class LinuxSandbox:
    """``port.Sandbox`` by namespaces, a filter of system calls, resource limits, and Landlock if present."""

    def __init__(self, *, max_runs: int = 8) -> None:
        """``max_runs`` programs run at once."""
        self._places = threading.BoundedSemaphore(max_runs)
        self._starting = threading.Lock()
        self._zygote: _Zygote | None = None
        self._closed = False

    def start(self) -> None:
        """Start the zygote and let a test program try to break out; without this call, the first run does so.

        Raises:
            IsolationUnavailableError: this machine cannot isolate programs.
            UnavailableError: the zygote died while it started; a repeat may succeed.
        """
        self._alive()

    def run_python(self, code: str, *, stdin: str = "", limits: SandboxLimits | None = None) -> SandboxResult:
        """Run ``code`` as ``__main__`` and wait for its end.

        Raises:
            IsolationUnavailableError: this machine cannot isolate programs.
            RecordError: the code or ``stdin`` is too large, or no UTF-8.
            UnavailableError: the sandbox itself failed; the same call may succeed.
        """
        code_bytes = encoded("code", code, bytes_max=CODE_BYTES_MAX)
        stdin_bytes = encoded("stdin", stdin, bytes_max=STDIN_BYTES_MAX)
        with self._places:
            return _run(self._alive(), code_bytes, stdin_bytes, limits or SandboxLimits())

    def close(self) -> None:
        """End all runs; calls in progress raise ``UnavailableError``, and so do later ones."""
        with self._starting:
            self._closed = True
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None

    def _alive(self) -> _Zygote:
        with self._starting:
            if self._closed:
                raise UnavailableError("The sandbox is closed", fix="open another one")
            if self._zygote is not None and not self._zygote.alive():
                self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                zygote = _Zygote()
                try:
                    break_out(
                        lambda code, limits: _run(zygote, code.encode(), b"", limits),
                        outside=[path for path in _VISIBLE_HERE if Path(path).exists()],
                    )
                except UnavailableError as error:
                    zygote.close()
                    raise isolation_unavailable(f"the self-test was lost: {error.why}") from error
                except BaseException:
                    zygote.close()
                    raise
                self._zygote = zygote
            return self._zygote


def _run(zygote: _Zygote, code: bytes, stdin: bytes, limits: SandboxLimits) -> SandboxResult:
    try:
        with zygote.connect() as connection:
            connection.settimeout(limits.wall_s + _GRACE_S)
            frames.send(connection, msgspec.structs.asdict(limits), (code, stdin))
            head, parts = frames.receive(connection, part_bytes_max=limits.output_bytes)
    except (OSError, EOFError, ValueError) as error:
        raise UnavailableError(
            "A run in the sandbox was lost", why=str(error) or "it gave no answer", fix="run it again"
        ) from error
    if "failed" in head:
        raise UnavailableError(
            "A run in the sandbox could not be isolated", why=str(head["failed"]), fix="run it again"
        )
    stdout, stderr = (part.decode(errors="replace") for part in parts)
    return msgspec.convert({**head, "stdout": stdout, "stderr": stderr}, SandboxResult)
