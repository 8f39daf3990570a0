"""One run from its first process to its last: start, monitor, stop at the target, drain.

Consumes statistics, the clock and signals; produces a ``RunOutcome``; waits for the target, the time limit, a signal
or the permanent failure of a process.
"""

import asyncio
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.core.errors import TidegateError
from tidegate.core.ids import RunId
from tidegate.core.targets import RunTarget
from tidegate.launch.board import Board
from tidegate.launch.live_run import (
    TRAINING,
    LiveRun,
    Screen,
    curriculum_problem_of,
    headline_of,
    is_warming_up,
    phase_of,
    phase_without_update,
    verifier_problem_of,
)
from tidegate.launch.platform import Platform
from tidegate.launch.preflight import Preflight
from tidegate.launch.refusals import RefusalWatch
from tidegate.launch.run_drain import drain_run
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_record import RunRecord
from tidegate.launch.stats_subscription import StatsSubscription
from tidegate.launch.target_check import TargetCheck
from tidegate.launch.time_limit import TimeLimit
from tidegate.runtime.races import is_set_within
from tidegate.runtime.run_event_log import RunEventLog

TICK_S = 0.25
LEFTOVERS_TIMEOUT_S = 2.0
PUBLISH_PERIOD_S = 2.0
HOUSEKEEPING_PERIOD_S = 30.0

EndedBy = Literal["target", "time", "interrupted", "failed"]


class CounterReading(msgspec.Struct, frozen=True):
    """Counters at one moment, to take rates between two of them."""

    at_s: float
    trained_steps: float
    cpu_s: float


class RunOutcome(msgspec.Struct, frozen=True):
    """The result of a session, before its audit.

    ``first`` and ``last`` are read at the first gradient and when training ended. ``values`` are the statistics at
    the end, ``notes`` the failed steps of the drain. ``verifier_problem``: how many verdicts failed, and why; empty
    without any; ``curriculum_problem``: of a curriculum of one's own, likewise.
    """

    ended_by: EndedBy
    problem: str
    started_at_s: float
    ended_at_s: float
    first: CounterReading | None
    last: CounterReading
    generated_steps: float
    version: str
    values: dict[str, float]
    restarts: dict[str, int]
    memory_peak_mb: dict[str, float]
    cpu_s: float
    notes: list[str]
    verifier_problem: str = ""
    curriculum_problem: str = ""


class RunSession(msgspec.Struct, frozen=True):
    """The run and its end conditions. ``beside``: processes that only read its folder (``companions``)."""

    folder: Path
    record: RunRecord
    plan: RunPlan
    target: RunTarget
    time_limit_s: float | None
    started_at_s: float
    beside: "tuple[subprocess.Popen[bytes], ...]" = ()


async def run_session(session: RunSession, screen: Screen, preflight: Preflight | None) -> RunOutcome:
    """Run the platform to its end; no process of it remains, whatever is raised.

    Raises:
        PreflightError: the environment, its settings or the policy cannot work.
    """
    board = Board(headline=headline_of(session.target, session.plan))
    platform = Platform(
        session.folder,
        session.record,
        session.plan,
        target=str(session.target),
        beside=session.beside,
    )
    stop = _StopSignals(platform)
    run = _RunLoop(session, board, platform, screen, stop)
    try:
        await platform.start(preflight)
        events = RunEventLog(session.folder)
        async with StatsSubscription(
            platform.record.broker, RunId(session.record.run_id), board, events=events
        ) as watch:
            ended_by = await run.watch(watch)
            problem = run.problem or platform.problem()
            last = run.read()
            platform.read_memory()
            notes = await run.end(ended_by)
        await platform.stop_helpers()
    finally:
        platform.kill_all()
        screen.close()
        stop.close()
    return RunOutcome(
        ended_by=ended_by,
        problem=problem,
        started_at_s=session.started_at_s,
        ended_at_s=last.at_s,
        first=run.first,
        last=last,
        generated_steps=board.total_over_lives("actor", actor_stats.STEPS),
        version=board.version(),
        values=run.values_at_end,
        restarts=platform.restarts(),
        memory_peak_mb=platform.memory_peak_mb,
        cpu_s=platform.cpu_s(),
        notes=notes,
        verifier_problem=verifier_problem_of(board),
        curriculum_problem=curriculum_problem_of(board),
    )


def run_to_end(session: RunSession, screen: Screen, preflight: Preflight | None) -> RunOutcome:
    """``run_session`` on an event loop of its own, which is abandoned even if a task does not end.

    ``asyncio.run`` waits for every task it cancels. The broker client's reconnect loop was seen to lose a
    cancellation when the broker goes away on a loaded machine, and the end of a run must not hang on that.
    """
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(run_session(session, screen, preflight))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=LEFTOVERS_TIMEOUT_S))
        loop.close()


def _before_training(values: dict[str, float], platform: Platform) -> str:
    """The phase before the first gradient."""
    ready, total = platform.readiness()
    if ready < total and not is_warming_up(values):
        return f"starting, {ready} of {total} ready"
    return phase_without_update(values)


class _StopSignals:
    """The first SIGINT, SIGTERM or SIGHUP asks for a drain, the second ends everything at once."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, platform: Platform) -> None:
        self.asked = asyncio.Event()
        self._platform = platform
        self._loop = asyncio.get_running_loop()
        for number in self.NUMBERS:
            self._loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.asked.is_set():
            self._platform.kill_all()
        self.asked.set()

    def close(self) -> None:
        for number in self.NUMBERS:
            self._loop.remove_signal_handler(number)


class _RunLoop:
    """The loop of the supervisor process."""

    def __init__(
        self, session: RunSession, board: Board, platform: Platform, screen: Screen, stop: _StopSignals
    ) -> None:
        self._session = session
        self._board = board
        self._platform = platform
        self._screen = screen
        self._stop = stop
        self._phase = "starting"
        self._refusals = RefusalWatch()
        self._target = TargetCheck(session.record, session.target)
        elapsed_s = time.time() - session.started_at_s
        self._time_limit = TimeLimit(session.time_limit_s, elapsed_s=elapsed_s)
        self.problem = ""
        self.first: CounterReading | None = None
        self.values_at_end: dict[str, float] = {}

    def read(self) -> CounterReading:
        values = self._board.values()
        return CounterReading(
            time.time(), values.get(learner_stats.TRAINED_STEPS, 0.0), self._platform.cpu_s()
        )

    async def watch(self, watch: StatsSubscription) -> EndedBy:
        """Check the newest statistics at every tick, until something ends the run."""
        published_s = tidied_s = float("-inf")
        steps_before = self._board.values().get(learner_stats.TRAINED_STEPS)
        while True:
            now_s = time.time()
            self._platform.notice(self._board, connected=watch.connected, now_s=now_s)
            if now_s - published_s >= PUBLISH_PERIOD_S:
                published_s = now_s
                self._platform.rewrite_processes()
                statistics = self._platform.statistics(now_s=now_s)
                self._board.put(statistics)
                await watch.publish(statistics)
                await self._platform.repair_broker(now_s=now_s)
            if now_s - tidied_s >= HOUSEKEEPING_PERIOD_S:
                tidied_s = now_s
                self._platform.tidy()
            values = self._board.values()
            steps = values.get(learner_stats.TRAINED_STEPS)
            if steps_before is None:
                steps_before = steps
            if self.first is None:
                if steps is not None and steps > (steps_before or 0.0):
                    self.first = self.read()
                self._phase = TRAINING if self.first is not None else _before_training(values, self._platform)
            self._show()
            if own_values := await self._target.reached(
                values, supervisor=partial(self._platform.statistics, now_s=now_s)
            ):
                self.values_at_end = values | own_values
                return "target"
            if ended_by := self._verdict(now_s=now_s):
                self.values_at_end = values
                return ended_by
            await self._sleep()

    def _verdict(self, *, now_s: float) -> EndedBy | None:
        if self._platform.failure is not None:
            return "failed"
        if refused := self._refusals.problem(self._board, now_s=now_s):
            self.problem = str(refused)
            return "failed"
        if self._stop.asked.is_set():
            return "interrupted"
        if self._time_limit.is_reached():
            return "time"
        return None

    async def _sleep(self) -> None:
        await is_set_within(self._stop.asked, timeout_s=TICK_S)

    def _show(self) -> None:
        session = self._session
        self._screen.show(
            LiveRun(
                run_id=session.record.run_id,
                folder=str(session.folder),
                plan=session.plan,
                target=session.target,
                started_at_s=session.started_at_s,
                board=self._board,
                phase=phase_of(self._board, otherwise=self._phase),
                time_limit_s=session.time_limit_s,
            )
        )

    async def end(self, ended_by: EndedBy) -> list[str]:
        """Drain the run and stop every service, in order."""
        self._phase = {"target": "target reached, draining"}.get(ended_by, "draining")
        self._show()
        notes: list[str] = []
        if self._platform.failure is None:
            try:
                notes = await drain_run(self._session.record, self._board, on_step=self._show)
            except TidegateError as error:
                notes = [str(error)]
        self._phase = "stopping"
        self._show()
        await self._platform.stop_services()
        return notes
