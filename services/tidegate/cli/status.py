"""``tidegate status``: the live view of a platform that another process supervises."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.catalogue import learner as learner_stats
from tidegate.cli.console import open_console
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.cli.up.history import read_history
from tidegate.cli.up.screen import LineScreen, LiveScreen, line
from tidegate.cli.up.summary import read_summary
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import RunId
from tidegate.core.targets import RunTarget, parse_target
from tidegate.launch.board import Board, drops
from tidegate.launch.live_run import (
    TRAINING,
    LiveRun,
    Screen,
    backup_of,
    backup_problem_of,
    headline_of,
    pause_of,
    phase_of,
    phase_without_update,
)
from tidegate.launch.run_folder import find_folder, is_running, read_plan, read_processes
from tidegate.launch.stats_subscription import StatsSubscription
from tidegate.runtime.backup_state import backup_sentence, read_state
from tidegate.wire.stats import ServiceStats

REFRESH_S = 0.5
# Every service publishes twice a second: after this the board has a snapshot of each.
GATHER_S = 1.2


class Status(msgspec.Struct, frozen=True):
    """The answer of ``status --json``.

    ``paused``: since when, by whom and why; empty while it is not. ``backup``: the newest one as a sentence; empty
    where none was asked for.
    """

    run_id: str
    folder: str
    running: bool
    elapsed_s: float
    version: str
    target: str
    target_reached: bool
    paused: str
    backup: str
    dropped: dict[str, int]
    values: dict[str, float]
    instances: dict[str, ServiceStats]


def status(
    run: RunArgument = None,
    folder: RunOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and exit.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print one line and exit.")] = False,
) -> None:
    """Watch a running platform until Ctrl-C, or until it ends."""
    where = find_folder(named_run(run, folder))
    if not is_running(where):
        _print_ended(where, json=json)
        return
    if json or once:
        live = asyncio.run(_gather(where))
        text = msgspec.json.encode(_status(where, live)).decode() if json else _line(live)
        sys.stdout.write(f"{text}\n")
        return
    console = open_console()
    asyncio.run(_follow(where, LiveScreen(console) if console.is_terminal else LineScreen()))


def _line(live: LiveRun) -> str:
    """One line for a person who asks once; a problem of the backups is in it already."""
    backup = "" if backup_problem_of(live.board) else backup_of(live.board)
    return f"{line(live)} · backup: {backup}" if backup else line(live)


def _print_ended(folder: Path, *, json: bool) -> None:
    summary = read_summary(folder)
    if summary is None:
        raise UnavailableError(
            f"The run in {folder} is not running and has no summary",
            why="its supervisor ended before it wrote one",
            fix=f"resume it with `tidegate up RUN --dir {folder}`, or check it with `tidegate audit --dir {folder}`",
        )
    backup = backup_sentence(read_state(folder), running=False, now_s=time.time())
    if json:
        sys.stdout.write(msgspec.json.encode({"running": False, "backup": backup, **summary}).decode() + "\n")
        return
    sys.stdout.write(
        f"{summary['run_id']} ended after {summary['elapsed_s']:.0f} s ({summary['ended_by']});"
        f" see {folder}/report.html\n"
    )
    if backup:
        sys.stdout.write(f"backup: {backup}\n")


def _live_run(folder: Path, board: Board) -> LiveRun:
    record, plan = read_plan(folder)
    processes = read_processes(folder)
    return LiveRun(
        run_id=record.run_id,
        folder=str(folder),
        plan=plan,
        target=_target(folder),
        started_at_s=processes.started_at_s if processes is not None else record.created_at_s,
        board=board,
        phase=phase_of(board, otherwise=_phase_without_problem(board)),
    )


def _phase_without_problem(board: Board) -> str:
    values = board.values()
    if values.get(learner_stats.TRAINED_STEPS, 0.0) > 0:
        return TRAINING
    return phase_without_update(values) if board.of("learner") else "starting"


def _target(folder: Path) -> RunTarget:
    """The target of this run, which ``up --until`` may set; in a cluster the one of the run file."""
    processes = read_processes(folder)
    if processes is None:
        return parse_target(read_plan(folder)[1].file.until)
    return parse_target(processes.target)


async def _gather(folder: Path) -> LiveRun:
    record, plan = read_plan(folder)
    board = Board(headline=headline_of(_target(folder), plan))
    async with StatsSubscription(record.broker, RunId(record.run_id), board):
        await asyncio.sleep(GATHER_S)
    return _live_run(folder, board)


async def _follow(folder: Path, screen: Screen) -> None:
    record, plan = read_plan(folder)
    board = Board(headline=headline_of(_target(folder), plan))
    board.history.extend(read_history(folder, board.headline))
    try:
        async with StatsSubscription(record.broker, RunId(record.run_id), board):
            while is_running(folder):
                screen.show(_live_run(folder, board))
                await asyncio.sleep(REFRESH_S)
    finally:
        screen.close()


def _status(folder: Path, live: LiveRun) -> Status:
    values = live.board.values()
    return Status(
        run_id=live.run_id,
        folder=str(folder),
        running=True,
        elapsed_s=time.time() - live.started_at_s,
        version=live.board.version(),
        target=str(live.target),
        target_reached=live.target.reached(values),
        paused=pause_of(live.board),
        backup=backup_of(live.board),
        dropped=drops(values),
        values=values,
        instances=live.board.latest(),
    )
