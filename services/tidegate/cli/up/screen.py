"""The screens of a run: a live view on a terminal, or a line every few seconds."""

import sys
import time

from rich.console import Console
from rich.live import Live

from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.cli.up.view import clock, draw, missing_statistic, number, problems_line, slos_line
from tidegate.launch.live_run import PAUSED, TRAINING, LiveRun, pause_of

LINE_PERIOD_S = 5.0


class LiveScreen:
    """The view, drawn in place; it disappears when it is closed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._live.start()

    def show(self, live: LiveRun) -> None:
        """Draw the current state."""
        width, height = self._console.size
        self._live.update(draw(live, width=width, height=height, now_s=time.time()), refresh=True)

    def close(self) -> None:
        """Restore the terminal."""
        self._live.stop()


class LineScreen:
    """One plain line every ``LINE_PERIOD_S`` seconds and one for every change of phase."""

    def __init__(self) -> None:
        self._shown_s = float("-inf")
        self._phase = ""

    def show(self, live: LiveRun) -> None:
        """Write a line if one is due."""
        now_s = time.monotonic()
        phase = live.phase.partition(",")[0]  # text after the comma is progress and no change of phase
        if phase == self._phase and now_s - self._shown_s < LINE_PERIOD_S:
            return
        self._shown_s, self._phase = now_s, phase
        sys.stdout.write(f"{line(live)}\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing to restore."""


def line(live: LiveRun) -> str:
    """The current state as one line."""
    values = live.board.values()
    pause = pause_of(live.board)
    parts = [clock(live.elapsed_s()), *([] if pause and live.phase == PAUSED else [live.phase])]
    if pause:
        parts.append(pause)
    if version := live.board.version():
        parts.append(f"version {version}")
    for condition in live.target.conditions:
        if condition.name in values:
            parts.append(f"{condition.name} {number(values[condition.name])} of {condition.threshold:g}")
        elif live.phase == TRAINING:
            parts.append(missing_statistic(condition.name, values))
    shown = (
        ("env steps", learner_stats.TRAINED_STEPS),
        ("lag", learner_stats.LAG_LAST_MAX),
        ("in flight", queue_stats.IN_FLIGHT_TRAJECTORIES),
    )
    parts += [f"{label} {number(values[name])}" for label, name in shown if name in values]
    dropped = values.get(store_stats.DROPPED)
    if dropped:
        parts.append(f"dropped {number(dropped)}")
    if objectives := slos_line(live.board):
        parts.append(f"SLOs: {objectives}")
    if problems := problems_line(live.board):
        parts.append(problems)
    return " · ".join(parts)
