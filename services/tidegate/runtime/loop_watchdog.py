"""Measures how long a service's event loop stands still, and names the function in which it does.

While the loop stands still the service answers no call, sends no heartbeat and fails its liveness probe. A callback of
the loop notes its time every ``BEAT_S``; a beat that is late by more than ``STALL_MAX_S`` is a stall. A thread sleeps
until a beat is overdue, and then samples the stack of the loop's thread. Costs 2 ms of CPU a second (measured on an
idle loop of two shared cores), nearly all of it for waking up; keeps one stack.

On a busy machine a beat is also late because the operating system runs something else. The CPU time of the loop's own
thread tells the two apart: a stall is ``computing`` if that thread computed for ``STALL_MAX_S`` of it, else
``waiting``: for a blocking call, for the interpreter's lock, or for a processor.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Literal

import msgspec
import structlog

from tidegate.catalogue import process
from tidegate.runtime.library_code import is_library
from tidegate.runtime.stats_board import StatsBoard

# Issue 18: no event loop stands still for longer, whatever the model's size.
STALL_MAX_S = 0.1
BEAT_S = 0.05
# A stall is logged if it is longer than the one logged last, or if this time has passed since.
LOG_EVERY_S = 10.0
# Innermost frames of a sampled stack.
FRAMES_MAX = 16
StallKind = Literal["computing", "waiting"]


class Stall(msgspec.Struct, frozen=True):
    """One stall: its duration, and how long the loop's own thread computed during it, both in seconds."""

    duration_s: float
    cpu_s: float

    @property
    def kind(self) -> StallKind:
        """Whether the loop's own thread computed for longer than allowed."""
        return "computing" if self.cpu_s > STALL_MAX_S else "waiting"


class Beat(msgspec.Struct, frozen=True):
    """When the loop last ran: by the monotonic clock, and by the CPU time of its thread, both in seconds."""

    at_s: float
    cpu_s: float


def stall_between(before: Beat, now: Beat) -> Stall | None:
    """The stall that made the beat ``now`` late; None if it was in time.

    The CPU time includes what was computed before the beat was due, at most ``BEAT_S`` too much.
    """
    late_s = now.at_s - before.at_s - BEAT_S
    if late_s <= STALL_MAX_S:
        return None
    return Stall(late_s, min(late_s, now.cpu_s - before.cpu_s))


def is_worth_a_line(stall: Stall, logged: Stall | None, *, since_s: float) -> bool:
    """Whether a stall is logged, ``since_s`` after the one ``logged`` last of its kind."""
    return logged is None or since_s >= LOG_EVERY_S or stall.duration_s > logged.duration_s


class StackFrame(msgspec.Struct, frozen=True):
    """One call on a stack: ``module.function:line``, and whether it is of Python's or an installed library."""

    line: str
    is_library: bool


def frames_of(frame: FrameType | None) -> list[StackFrame]:
    """The innermost calls of a stack, innermost first."""
    found: list[StackFrame] = []
    while frame is not None and len(found) < FRAMES_MAX:
        code = frame.f_code
        line = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}:{frame.f_lineno}"
        found.append(StackFrame(line, is_library(code.co_filename)))
        frame = frame.f_back
    return found


def culprit(stack: Sequence[StackFrame]) -> str:
    """The innermost function that is of no library, else the innermost of all; empty without a stack."""
    return next((frame.line for frame in stack if not frame.is_library), stack[0].line if stack else "")


class LoopWatchdog:
    """Watches the loop in which ``start`` is called, until ``stop``."""

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        self._log = log
        # Of either kind, since the start.
        self.longest: dict[StallKind, Stall] = {}
        self.counts: dict[StallKind, int] = {"computing": 0, "waiting": 0}
        self.culprit = ""
        self._logged: dict[StallKind, tuple[Stall, float]] = {}
        self._beat = Beat(0.0, 0.0)
        self._handle: asyncio.TimerHandle | None = None
        self._loop_thread = 0
        self._stopped = threading.Event()
        # Written by the thread while the loop stands still, taken by the loop at its next beat.
        self._stack: list[StackFrame] = []

    def start(self) -> None:
        """Watch the running loop from now on; what it did before, such as building the service, does not count."""
        self._loop_thread = threading.get_ident()
        self._note_beat()
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer; judges what happened since the last beat."""
        if self._handle is not None:
            self._judge(_now())
            self._handle.cancel()
            self._handle = None
        self._stopped.set()

    def report(self, stats: StatsBoard) -> None:
        """Write what was seen so far to the board."""
        for kind, count in self.counts.items():
            stats.set(process.LOOP_STALLS_OF.member(kind), count)
        stats.set(process.LOOP_STALL_LONGEST_S, max((s.duration_s for s in self.longest.values()), default=0))
        computing = self.longest.get("computing")
        stats.set(process.LOOP_STALL_CPU_S, computing.cpu_s if computing else 0.0)
        stats.label(process.LOOP_STALL, self.culprit)

    def _note_beat(self) -> None:
        self._beat = _now()
        self._handle = asyncio.get_running_loop().call_later(BEAT_S, self._on_beat)

    def _on_beat(self) -> None:
        self._judge(_now())
        self._note_beat()

    def _judge(self, now: Beat) -> None:
        stall = stall_between(self._beat, now)
        stack, self._stack = self._stack, []
        if stall is None:
            return
        kind = stall.kind
        self.counts[kind] += 1
        longest = self.longest.get(kind)
        if longest is None or stall.duration_s > longest.duration_s:
            self.longest[kind] = stall
            if kind == "computing":
                self.culprit = culprit(stack)
        logged, logged_at_s = self._logged.get(kind, (None, 0.0))
        if is_worth_a_line(stall, logged, since_s=now.at_s - logged_at_s):
            self._logged[kind] = stall, now.at_s
            self._write_line(stall, stack)

    def _write_line(self, stall: Stall, stack: list[StackFrame]) -> None:
        # What waits may only have been without a processor; what computes is a defect.
        write = self._log.warning if stall.kind == "computing" else self._log.info
        write(
            "event_loop_stalled",
            kind=stall.kind,
            duration_s=round(stall.duration_s, 3),
            cpu_s=round(stall.cpu_s, 3),
            where=culprit(stack),
            frames=" < ".join(frame.line for frame in stack),
        )

    def _watch(self) -> None:
        """Sample the loop's stack once a stall."""
        sampled: Beat | None = None
        while True:
            beat = self._beat
            overdue_in_s = beat.at_s + BEAT_S + STALL_MAX_S - time.monotonic()
            if overdue_in_s <= 0 and beat is not sampled:
                sampled = beat
                self._sample(beat)
            if self._stopped.wait(max(overdue_in_s, STALL_MAX_S)):
                return

    def _sample(self, beat: Beat) -> None:
        # The one way to the stack of another thread; the standard library documents it for debugging deadlocks.
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        stack = frames_of(frames.get(self._loop_thread))
        if beat is self._beat:  # else the stall ended meanwhile, and this is the stack of something else
            self._stack = stack


def _now() -> Beat:
    return Beat(time.monotonic(), time.thread_time())
