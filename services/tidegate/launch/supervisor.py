"""Restarts processes until they are stopped, and leaves none behind.

Consumes exits of processes; produces restarts and a snapshot of their states; waits for its children; unblocked by
``stop`` and ``kill_all``. Every child leads a process group of its own, so that Ctrl-C reaches the supervisor alone
and a child takes its own children with it; ``guarded`` ends it if the supervisor is killed.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.launch.log_tail import final_message
from tidegate.launch.programs import ProcessSpec, RunningProcess, start_program
from tidegate.launch.restarts import PermanentFailure, after_exit
from tidegate.runtime.races import is_set_within

# A log is cut when it reaches this; the part before stays beside it as <name>.log.1 until the next cut.
LOG_BYTES_MAX = 32 << 20
KILL_WAIT_S = 5.0
# In place of the exit code of a process that could not be started.
EXIT_NOT_STARTED = 1

# Replicas of a service that start at once: two hundred actors would keep each other, and the broker's answers to them,
# from the processors until their deadlines are over. One that is not ready after so long makes way for the next.
REPLICAS_STARTING_MAX = 16
STARTING_S = 30.0
TURN_POLL_S = 0.5

State = Literal["starting", "running", "backoff", "stopping", "stopped", "failed"]


class ProcessView(msgspec.Struct, frozen=True):
    """One process at one moment. ``pid`` is None between an exit and the restart."""

    name: str
    state: State
    pid: int | None
    restarts: int


class ProcessFailedError(TidegateError):
    """A process failed for good; the platform ends."""


@dataclass(slots=True)
class _Child:
    spec: ProcessSpec
    state: State = "starting"
    process: RunningProcess | None = None
    # The number of an ended group may be another process's.
    group_ended: bool = False
    started_s: float = float("-inf")
    ever_ready: bool = False
    restarts: int = 0
    crashes: int = 0
    kills: int = 0
    problem: str = ""
    stopping: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    monitor: asyncio.Task[None] | None = None
    failure: ProcessFailedError | None = None


class Supervisor:
    """The children of one platform. ``failure`` is set once, when a process failed for good that no other replaces."""

    def __init__(
        self,
        *,
        on_change: Callable[[], None] | None = None,
        start: Callable[[ProcessSpec], Awaitable[RunningProcess]] = start_program,
        disk_full: Callable[[], bool] = lambda: False,
        beside: "Sequence[subprocess.Popen[bytes]]" = (),
    ) -> None:
        """``on_change`` is called after every start and exit; ``start`` starts one process.

        ``disk_full``: whether the run's disk is full, which excuses an exit. ``beside``: other children of this
        process, whose exit codes their owner asks for later.
        """
        self._children: dict[str, _Child] = {}
        self._start = start
        self._on_change = on_change or (lambda: None)
        self._disk_full = disk_full
        self._beside = beside
        self._num_spawning = 0
        self._one_ready = asyncio.Event()
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self.failure: ProcessFailedError | None = None
        self.failed = asyncio.Event()

    def start(self, spec: ProcessSpec) -> None:
        """Start a process and restart it from now on when it exits."""
        child = _Child(spec)
        self._children[spec.name] = child
        child.monitor = asyncio.create_task(self._monitor(child), name=f"monitor {spec.name}")
        child.monitor.add_done_callback(lambda task: self._on_monitor_end(child, task))

    def mark_ready(self, name: str) -> None:
        """Record that the process reported ready."""
        child = self._children.get(name)
        if child is not None:
            child.ever_ready = True
            if child.state == "starting":
                child.state = "running"
                self._one_ready.set()

    def view(self) -> list[ProcessView]:
        """Every process, in the order of their starts."""
        return [
            ProcessView(
                name=child.spec.name,
                state=child.state,
                pid=child.process.pid
                if child.process is not None and child.process.returncode is None
                else None,
                restarts=child.restarts,
            )
            for child in self._children.values()
        ]

    def unstable(self) -> str:
        """The processes that do not work, with their last errors: given up, or crashing before they were ever ready."""
        found: list[str] = []
        for child in self._children.values():
            if child.failure is not None and child.spec.essential:
                found.append(str(child.failure))
            elif child.restarts and not child.ever_ready:
                crashes = f"{child.spec.name} crashed {child.restarts} times and was never ready"
                found.append(f"{crashes}: {_cause(child)}")
        return " ".join(found)

    async def stop(self, names: list[str], *, grace_s: float) -> None:
        """SIGTERM to all of ``names`` at once; processes that remain after ``grace_s`` are killed with their groups."""
        children = [self._children[name] for name in names if name in self._children]
        for child in children:
            child.stopping = True
            child.state = "stopping"
            if child.process is None or child.process.returncode is not None:
                child.ended.set()
            else:
                _signal(child.process.pid, signal.SIGTERM, group=False)
        try:
            async with asyncio.timeout(grace_s):
                for child in children:
                    await child.ended.wait()
        except TimeoutError:
            for child in children:
                _kill(child)
            await asyncio.wait(
                [asyncio.create_task(child.ended.wait()) for child in children], timeout=KILL_WAIT_S
            )
        for child in children:
            _kill(child)  # its orphans in its process group
            child.state = "stopped"
        monitors = [child.monitor for child in children if child.monitor is not None]
        for monitor in monitors:
            monitor.cancel()
        if monitors:  # one of them may be starting a process, and ends it
            await asyncio.wait(monitors, timeout=KILL_WAIT_S)
        self._on_change()

    def kill(self, name: str) -> None:
        """SIGKILL to one process and its group; it is restarted."""
        _kill(self._children[name])

    def kill_all(self) -> None:
        """SIGKILL to every process group, now."""
        for child in self._children.values():
            child.stopping = True
            _kill(child)

    def trim_logs(self) -> None:
        """Truncate logs that exceed their bound; the writers append, so they continue at the new end."""
        for child in self._children.values():
            try:
                if child.spec.log.stat().st_size > LOG_BYTES_MAX:
                    with contextlib.suppress(OSError):  # without space for a copy the older part is lost
                        shutil.copyfile(child.spec.log, child.spec.log.with_suffix(".log.1"))
                    os.truncate(child.spec.log, 0)
            except OSError:
                continue  # there is no log yet, or its disk fails: what the service logs is lost

    def reap_orphans(self) -> None:
        """Reap ended processes that only became children of this one when their parent died."""
        if self._num_spawning:
            return  # one that ended may be a process whose start is awaited, and its exit code with it
        for process in self._beside:
            process.poll()
        children = [child.process for child in self._children.values() if child.process is not None]
        ours = {process.pid for process in (*children, *self._beside) if process.returncode is None}
        try:
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in ours:
                    return  # who waits for it reaps it; the others follow at the next call
                os.waitpid(ended.si_pid, os.WNOHANG)
        except ChildProcessError:
            return  # there is no child at all

    def _on_monitor_end(self, child: _Child, task: "asyncio.Task[None]") -> None:
        """End the platform when a monitor failed: its process would never be started again."""
        if task.cancelled() or task.exception() is None:
            return
        child.state = "failed"
        child.failure = ProcessFailedError(
            f"The supervisor of {child.spec.name} failed",
            why=repr(task.exception()),
            fix="start the run again with the same --dir; please report this",
        )
        self.failure = self.failure or child.failure
        self.failed.set()
        child.ended.set()

    async def _await_turn(self, child: _Child) -> None:
        """Until fewer than ``REPLICAS_STARTING_MAX`` replicas of its service are starting; then this one is."""
        async with self._turns[child.spec.replica_of]:
            while not child.stopping and self._num_starting(child.spec.replica_of) >= REPLICAS_STARTING_MAX:
                self._one_ready.clear()
                await is_set_within(self._one_ready, timeout_s=TURN_POLL_S)
            child.started_s = time.monotonic()

    def _num_starting(self, service: str) -> int:
        begun_s = time.monotonic() - STARTING_S
        return sum(
            child.state == "starting" and child.started_s > begun_s
            for child in self._children.values()
            if child.spec.replica_of == service != ""
        )

    async def _monitor(self, child: _Child) -> None:
        await self._await_turn(child)
        while not child.stopping:
            child.started_s, child.state, child.problem = time.monotonic(), "starting", ""
            try:
                child.process = await self._spawn(child.spec)
                child.group_ended = False
            except OSError as error:  # no space for its log, no memory, no process id
                child.process = None
                child.problem = f"it cannot be started: {error}"
                exit_code = EXIT_NOT_STARTED
            else:
                self._on_change()
                exit_code = await child.process.wait()
            if child.stopping:
                break
            _kill(child)
            lived_s = time.monotonic() - child.started_s
            verdict = after_exit(
                crashes=child.crashes,
                lived_s=lived_s,
                ever_ready=child.ever_ready,
                exit_code=exit_code,
                healthy_after_s=child.spec.healthy_after_s,
                kills=child.kills,
                disk_full=self._disk_full(),
            )
            if isinstance(verdict, PermanentFailure):
                self._fail(child, verdict)
                break
            child.crashes, child.kills, child.state = verdict.crashes, verdict.kills, "backoff"
            child.restarts += 1
            self._on_change()
            await asyncio.sleep(verdict.backoff_s)
        child.ended.set()

    async def _spawn(self, spec: ProcessSpec) -> RunningProcess:
        self._num_spawning += 1
        try:
            return await self._start(spec)
        finally:
            self._num_spawning -= 1

    def _fail(self, child: _Child, verdict: PermanentFailure) -> None:
        child.state = "failed"
        child.failure = ProcessFailedError(
            f"{child.spec.name} failed for good: {verdict.reason}",
            why=_cause(child),
            fix=f"see logs/{child.spec.log.name} in the run folder",
        )
        if child.spec.essential and not self._has_working_replica(child.spec):
            self.failure = self.failure or child.failure
            self.failed.set()
        self._on_change()

    def _has_working_replica(self, spec: ProcessSpec) -> bool:
        return any(
            child.state == "running" and child.spec.replica_of == spec.replica_of != ""
            for child in self._children.values()
        )


def _cause(child: _Child) -> str:
    """The last error in a process' log; also the signal that ended it, because that leaves no error there."""
    if child.problem:
        return child.problem
    message = final_message(child.spec.log)
    last = f"its last error: {message}" if message else "its log is empty"
    code = child.process.returncode if child.process is not None else None
    if code is None or code >= 0:
        return last
    return f"signal {-code} ({signal.strsignal(-code)}) ended it; {last}"


def _kill(child: _Child) -> None:
    """SIGKILL to the process group that a child leads; also once after it has ended, for those that it left behind."""
    if child.process is None or child.group_ended:
        return
    child.group_ended = child.process.returncode is not None
    _signal(child.process.pid, signal.SIGKILL, group=True)


def _signal(pid: int, number: signal.Signals, *, group: bool) -> None:
    try:
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # it ended meanwhile
