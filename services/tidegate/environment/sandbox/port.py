"""The sandbox port: runs a Python program; returns its output and exit status.

Calls block and belong in a thread, as verifiers and turns of a conversation do. A run is over when its call returns:
no process of it is alive, and nothing that it wrote is kept.
"""

from typing import Annotated, Literal, Protocol

import msgspec

from tidegate.core.errors import RecordError, TidegateError

CODE_BYTES_MAX = 1 << 20
STDIN_BYTES_MAX = 1 << 20

Spent = Literal["cpu", "wall", "memory", "output"]

PositiveSeconds = Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]


class SandboxLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one run may use. All processes of a run share each limit.

    ``cpu_s``: seconds of CPU time. ``wall_s``: seconds from the call to its answer, the wait for a free place apart.
    ``memory_bytes``: address space of each process (a Python program begins with about 40 MB), and memory of all of
    them together, with what the kernel holds for them; files in scratch count apart. ``processes``: processes and
    threads at once, the program's own included. ``output_bytes``: of stdout and of stderr, each; a program that writes
    more is ended. ``scratch_bytes``, ``files``: what the scratch folder holds; beyond that writing fails with ENOSPC,
    as on a full disk.
    """

    cpu_s: PositiveSeconds = 5.0
    wall_s: PositiveSeconds = 10.0
    memory_bytes: Annotated[int, msgspec.Meta(ge=64 << 20, le=1 << 40)] = 512 << 20
    processes: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    output_bytes: Annotated[int, msgspec.Meta(ge=1, le=16 << 20)] = 64 << 10
    scratch_bytes: Annotated[int, msgspec.Meta(ge=4096, le=1 << 34)] = 16 << 20
    files: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 256


class SandboxResult(msgspec.Struct, frozen=True):
    """How a program ended and what it wrote.

    ``exit_status``: its exit status, or minus the signal that ended it. ``limit``: the limit that ended it, None where
    it ended by itself. ``stdout``, ``stderr``: what was kept, at most ``output_bytes`` of the limits each, undecodable
    bytes replaced; ``stdout_bytes`` and ``stderr_bytes`` count all that was read.
    """

    exit_status: int
    limit: Spent | None
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    cpu_s: float
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself and without an error."""
        return self.limit is None and self.exit_status == 0

    @property
    def truncated(self) -> bool:
        """Whether it wrote more than was kept."""
        return self.limit == "output"


class IsolationUnavailableError(TidegateError):
    """This machine cannot isolate model-written code, so none is run."""

    status = "FAILED_PRECONDITION"


class Sandbox(Protocol):
    """Runs untrusted programs."""

    def run_python(self, code: str, *, stdin: str = "", limits: SandboxLimits | None = None) -> SandboxResult:
        """Run ``code`` as ``__main__`` and wait for its end, at most ``limits.wall_s`` and a second (default limits).

        Raises:
            IsolationUnavailableError: this machine cannot isolate programs.
            RecordError: the code or ``stdin`` is larger than ``CODE_BYTES_MAX`` or ``STDIN_BYTES_MAX``, or no UTF-8.
            UnavailableError: the sandbox itself failed; the same call may succeed.
        """
        ...

    def close(self) -> None:
        """End all runs; calls in progress raise ``UnavailableError``."""
        ...


class IsolatedSandbox(Sandbox, Protocol):
    """A sandbox that tests its isolation at the start."""

    def start(self) -> None:
        """Start it and let test programs try to break out; without this call, the first run does so.

        Raises:
            IsolationUnavailableError: programs cannot be isolated.
            UnavailableError: the sandbox itself failed; a repeat may succeed.
        """
        ...


def encoded(what: str, text: str, *, bytes_max: int) -> bytes:
    """``text`` as UTF-8.

    Raises:
        RecordError: it is larger than ``bytes_max``, or no UTF-8.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"The {what} is no UTF-8", why=str(error)) from error
    if len(data) > bytes_max:
        raise RecordError(f"The {what} has {len(data):,} bytes", why=f"the sandbox takes {bytes_max:,}")
    return data
