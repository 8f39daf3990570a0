"""A program under measurement: started, watched, ended, and its whole tree's CPU time known throughout."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from benchmarks.process_tree import (
    adopt_orphans,
    children_of,
    machine_busy_s,
    tree_cpu_s,
)
from tidegate.core.errors import UnavailableError
from tidegate.launch.log_tail import final_message
from tidegate.runtime.parent_death import dies_with_this_process

POLL_S = 0.02
# Draining a platform and writing its report; past it the program is killed.
END_TIMEOUT_S = 60.0
# Roots of the programs that run now: no orphans.
_ROOTS: set[int] = set()
_EXITED = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Moment(msgspec.Struct, frozen=True):
    """Readings at one moment: wall clock, CPU seconds of the tree so far, busy seconds of the whole machine so far."""

    at_s: float
    cpu_s: float
    machine_s: float


class Program:
    """One process tree. Use it as a context: leaving kills whatever is left of it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Start ``command`` with its output in ``log``, in ``folder`` or where this program was started.

        Programs may run side by side; processes whose parent ended are then counted for each of them.
        """
        adopt_orphans(adopt=True)
        self._not_ours = children_of(os.getpid()) - _ROOTS
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self.started_at_s = time.time()
        self._machine_started_s = machine_busy_s()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,
                preexec_fn=dies_with_this_process(),
            )
        _ROOTS.add(self.pid)
        self._ended_cpu_s = 0.0
        self._ended_at_s: float | None = None

    def __enter__(self) -> "Program":
        """The program runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, gently unless something went wrong."""
        self.end(gently=error is None)

    @property
    def pid(self) -> int:
        """The root's."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the root runs."""
        if self._ended_at_s is None and self._has_exited():
            self._reap()
        return self._process.returncode

    def moment(self) -> Moment:
        """Read everything now."""
        cpu_s = self._ended_cpu_s
        if self._ended_at_s is None:
            cpu_s = tree_cpu_s({self.pid, *self._orphans()})
        return Moment(time.time(), cpu_s, machine_busy_s() - self._machine_started_s)

    def require_alive(self) -> None:
        """Check that the program has not ended by itself.

        Raises:
            UnavailableError: the program ended.
        """
        if self.exit_code is not None:
            raise UnavailableError(
                f"The program under measurement ended with exit code {self.exit_code}",
                why=final_message(self._log),
                fix=f"see {self._log} and the logs beside it",
            )

    def end(self, *, gently: bool = True) -> Moment:
        """SIGTERM, wait, SIGKILL where that did not help; returns the whole program's account."""
        if self.exit_code is None:
            if gently:
                os.kill(self.pid, signal.SIGTERM)
                self.wait(timeout_s=END_TIMEOUT_S)
            if self._ended_at_s is None:
                os.killpg(self.pid, signal.SIGKILL)
                self.wait(timeout_s=END_TIMEOUT_S)
        return self.moment()

    def wait(self, *, timeout_s: float) -> bool:
        """Whether the program ended by itself in time."""
        deadline_s = time.monotonic() + timeout_s
        while self.exit_code is None and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return self.exit_code is not None

    def _has_exited(self) -> bool:
        return os.waitid(os.P_PID, self.pid, _EXITED) is not None

    def _reap(self) -> None:
        """Take the final account: the kernel's for the root and what it waited for, and what it left behind."""
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._ended_cpu_s = usage.ru_utime + usage.ru_stime
        for orphan in self._orphans():
            os.kill(orphan, signal.SIGKILL)
            _, _, usage = os.wait4(orphan, 0)
            self._ended_cpu_s += usage.ru_utime + usage.ru_stime
        _ROOTS.discard(self.pid)
        adopt_orphans(adopt=bool(_ROOTS))
        self._ended_at_s = time.time()

    def _orphans(self) -> set[int]:
        return children_of(os.getpid()) - self._not_ours - _ROOTS - {self.pid}
