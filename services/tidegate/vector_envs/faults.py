"""Faults of environments: what happened, how long a copy pauses afterwards, and when the environment is given up.

A copy that raises or returns numbers that are not finite is made again at once. If that does not help it pauses, each
time twice as long, so that a copy that always fails costs its own column and no time. An environment of which every
copy keeps failing is given up: its actor could make no data.
"""

import traceback
from collections import Counter, deque
from pathlib import Path
from typing import Literal

import msgspec

from tidegate.core.errors import TidegateError

# What the environment was asked for: to be made, to reset, or to step.
Call = Literal["make", "reset", "step"]
# How a call failed. "hung" ends the actor (actor.rollouts.environment_watch); the others end the copy's episode.
FaultKind = Literal["raised", "not_finite", "hung"]
FAULT_KINDS: tuple[FaultKind, ...] = ("raised", "not_finite", "hung")

# A copy that made so many steps since its last fault was healthy: its next fault counts as the first. Most
# environments have reset themselves by then, and making one again costs about as much as a hundred steps.
HEALTHY_STEPS = 100
# Steps that a copy which keeps failing is left out for, at most: it then costs nothing, and is tried again.
PAUSE_STEPS_MAX = 4_096
# Faults in a row of every copy after which the environment is given up.
FAULTS_IN_A_ROW_MAX = 10
# Faults that wait to be reported; of more the oldest are only counted.
RECENT_MAX = 32
# Faults whose traceback is kept: one for each line of code that raised. More lines are bugs of the same environment.
PLACES_MAX = 32
DETAIL_CHARACTERS_MAX = 300
TRACEBACK_CHARACTERS_MAX = 4_000
WHOLE_FORM = -1


class EnvironmentFailedError(TidegateError):
    """Every copy of an environment fails again and again."""


class Fault(msgspec.Struct, frozen=True):
    """One failed call. ``copy``: its index, or ``WHOLE_FORM`` for a vector form that steps all copies in one call.

    ``detail``: the exception and the line that raised it, or the component that is not finite. ``trace``: the
    traceback, where the line raised for the first time.
    """

    kind: FaultKind
    env_id: str
    copy: int
    call: Call
    detail: str
    trace: str = ""

    def __str__(self) -> str:
        """One sentence that names the environment, the copy, the call and the cause."""
        where = (
            f"Environment {self.env_id!r}"
            if self.copy == WHOLE_FORM
            else f"Copy {self.copy} of {self.env_id!r}"
        )
        verb = {
            "raised": "raised in",
            "not_finite": "returned a number that is not finite from",
            "hung": "does not return from",
        }
        return f"{where} {verb[self.kind]} {self.call}: {self.detail}"


class FaultReport(msgspec.Struct, frozen=True):
    """The faults since the report before: how many of each kind, and the newest ones, at most ``RECENT_MAX``."""

    counts: dict[FaultKind, int]
    newest: list[Fault]


class FaultLog:
    """The faults of ``num_units`` copies, or of one vector form, and the pauses they cause.

    Steps are counted by the caller, not by the clock, so that a run with the same seed pauses alike.
    """

    def __init__(self, env_id: str, *, num_units: int) -> None:
        self.env_id = env_id
        self._counts: Counter[FaultKind] = Counter()
        self._recent: deque[Fault] = deque(maxlen=RECENT_MAX)
        self._in_a_row = [0] * num_units
        self._healthy_from = [0] * num_units
        self._places: set[str] = set()

    def raised(self, copy: int, call: Call, error: BaseException) -> Fault:
        """A fault for an exception."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown line"
        trace = ""
        if place not in self._places and len(self._places) < PLACES_MAX:
            self._places.add(place)
            trace = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS_MAX:]
        detail = f"{error!r:.{DETAIL_CHARACTERS_MAX}} at {place}"
        return Fault("raised", self.env_id, copy, call, detail, trace)

    def not_finite(self, copy: int, call: Call, component: str) -> Fault:
        """A fault for a number that is not finite."""
        return Fault("not_finite", self.env_id, copy, call, component)

    def add(self, fault: Fault, *, unit: int, step: int) -> int:
        """Record a fault of a unit at the caller's step number; returns how many steps the unit pauses.

        Raises:
            EnvironmentFailedError: every copy has failed ``FAULTS_IN_A_ROW_MAX`` times without being healthy between.
        """
        if step - self._healthy_from[unit] >= HEALTHY_STEPS:
            self._in_a_row[unit] = 0
        self._in_a_row[unit] += 1
        # A vector of one unit never pauses, as nothing would go on meanwhile. (The doubling stops before it overflows.)
        doubled = (1 << min(self._in_a_row[unit] - 1, 16)) - 1
        pause = min(doubled, PAUSE_STEPS_MAX) if len(self._in_a_row) > 1 else 0
        self._healthy_from[unit] = step + pause
        self.count(fault)
        if all(self._keeps_failing(each, step=step) for each in range(len(self._in_a_row))):
            raise EnvironmentFailedError(
                f"Environment {self.env_id!r} keeps failing: {FAULTS_IN_A_ROW_MAX} times in a row in every copy",
                why=str(fault),
                fix=f"correct the environment; a copy that makes {HEALTHY_STEPS} steps between faults is tolerated",
            )
        return pause

    def count(self, fault: Fault) -> None:
        """Record a fault that belongs to no unit."""
        self._counts[fault.kind] += 1
        self._recent.append(fault)

    def take(self) -> FaultReport | None:
        """The faults since the last call; None without any."""
        if not self._recent:
            return None
        report = FaultReport(dict(self._counts), list(self._recent))
        self._counts.clear()
        self._recent.clear()
        return report

    def _keeps_failing(self, unit: int, *, step: int) -> bool:
        unhealthy = step - self._healthy_from[unit] < HEALTHY_STEPS
        return unhealthy and self._in_a_row[unit] >= FAULTS_IN_A_ROW_MAX
