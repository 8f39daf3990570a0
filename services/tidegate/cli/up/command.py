"""``tidegate up``."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidegate.cli.up.screen import LineScreen, LiveScreen
from tidegate.cli.up.summary import Summary, render_summary, summarise, write_summary
from tidegate.core.distributions import parse_duration
from tidegate.core.errors import StaleFolderError
from tidegate.launch import run_folder as folders
from tidegate.launch import usage
from tidegate.launch.cross_checks import check_target
from tidegate.launch.live_run import Screen
from tidegate.launch.preflight import PreflightError
from tidegate.launch.preparation import prepare_model, write_datasets
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.session import RunSession, run_to_end
from tidegate.launch.targets import parse_target
from tidegate.runtime.loading import load


def up(
    run: Annotated[Path, typer.Argument(help="Run file.", metavar="RUN")],
    until: Annotated[
        str | None,
        typer.Option(help="Target that ends the run: 'mean_return>=475' (default: the run file's)."),
    ] = None,
    for_: Annotated[str | None, typer.Option("--for", help="Time limit: 90s, 5m, 1h30m.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of the run file: path.to.key=value; repeatable."),
    ] = None,
    headless: Annotated[
        bool, typer.Option("--headless", help="Print lines instead of the live view.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object on the last line.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Run folder; the folder of an earlier start of this run is resumed."),
    ] = None,
) -> None:
    """Start the broker and every service, train until the target is reached, and print a summary.

    Exits 0 only if the target was reached (without a target: at the end of --for) and the audit is balanced.
    """
    started_at_s = usage.started_at_s()
    plan = read_run_file(run, set_ or [])
    target = parse_target(plan.file.until if until is None else until)
    if problem := check_target(target, plan.file, plan.services):
        raise problem
    limit_s = parse_duration(for_) if for_ is not None else None
    where = folder or folders.default_folder(plan)
    is_new = not where.exists()
    record = _open_folder(where, plan)
    session = RunSession(where, record, plan, target, limit_s, started_at_s)
    try:
        succeeded = train(session, headless=headless, json=json)
    except PreflightError:
        if is_new:
            shutil.rmtree(where, ignore_errors=True)  # nothing of the run has started
        raise
    raise typer.Exit(0 if succeeded else 1)


def train(session: RunSession, *, headless: bool, json: bool) -> bool:
    """Run a session in its folder and print its summary; returns whether it succeeded.

    Raises:
        ConfigError: another process uses the folder, or a dataset or model cannot be prepared.
    """
    where = session.folder
    lock = folders.lock(where)
    try:
        prepare_model(session.plan)
        write_datasets(session.plan, where / "data")
        outcome = run_to_end(session, _screen(headless=headless or json))
        summary = summarise(session, outcome, report=where / folders.REPORT_HTML)
        _finish(where, summary, json=json)
    finally:
        os.close(lock)
    return summary.succeeded


def _open_folder(where: Path, plan: RunPlan) -> folders.RunRecord:
    if folders.is_run_folder(where):
        return folders.resumed_record(where, plan)
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise StaleFolderError(
            f"{where} exists and is no run folder",
            why=f"it holds no {folders.RUN_JSON}, and a run needs a folder of its own",
            fix="choose another --dir",
        )
    record = folders.new_record(plan)
    where.mkdir(parents=True, exist_ok=True)
    return record


def _screen(*, headless: bool) -> Screen:
    console = Console()
    return LineScreen() if headless or not console.is_terminal else LiveScreen(console)


def _finish(where: Path, summary: Summary, *, json: bool) -> None:
    write_summary(where, summary)
    # Plots need more memory than the supervisor: they load when no process is left to supervise.
    load("tidegate.cli.report.command:write_report")(where)
    Console().print(render_summary(summary), highlight=False)
    if summary.problem:
        sys.stderr.write(f"tidegate: {summary.problem}\n")
    if json:
        sys.stdout.write(f"{summary.to_json()}\n")
