"""``tidegate up``."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.cli.run_argument import SetOption
from tidegate.core.distributions import parse_duration
from tidegate.core.errors import StaleFolderError
from tidegate.launch import run_folder as folders
from tidegate.launch.beginning import begun
from tidegate.launch.dial import dial_notice
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_record import RunRecord
from tidegate.launch.run_target import target_of
from tidegate.runtime.loading import load

# What trains and draws is loaded once the environment is being tried.
TRAIN = "tidegate.cli.up.training:train"
WRITE_BEGUN = "tidegate.launch.begin_from:write_begun_policy"


def up(
    run: Annotated[Path, typer.Argument(help="Run file.", metavar="RUN")],
    until: Annotated[
        str | None,
        typer.Option(help="Target that ends the run: 'mean_return>=475' (default: the run file's)."),
    ] = None,
    for_: Annotated[str | None, typer.Option("--for", help="Time limit: 90s, 5m, 1h30m.")] = None,
    set_: SetOption = None,
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

    Exits 0 only if the audit is balanced, and the target was reached or the time of --for ended after a gradient. A
    target that --until names must be reached.
    """
    plan = read_run_file(run, set_ or [])
    target = target_of(plan, until=until)
    if notice := dial_notice(plan):
        sys.stderr.write(f"tidegate: {notice}.\n")
    limit_s = parse_duration(for_) if for_ is not None else None
    where = folder or folders.default_folder(plan)
    with begun(plan, folder=where) as preflight:
        train = load(TRAIN)
        succeeded = train(
            where,
            _open_folder(where, plan),
            plan,
            target,
            limit_s=limit_s,
            target_required=until is not None,
            preflight=preflight,
            headless=headless,
            json=json,
        )
    raise typer.Exit(0 if succeeded else 1)


def _open_folder(where: Path, plan: RunPlan) -> RunRecord:
    if folders.is_run_folder(where):
        return folders.resumed_record(where, plan)
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise StaleFolderError(
            f"{where} exists and is no run folder",
            why=f"it holds no {folders.RUN_JSON}, and a run needs a folder of its own",
            fix="choose another --dir",
        )
    record = folders.new_record(plan)
    begun_from = load(WRITE_BEGUN)(plan, where) if plan.file.begin_from else ""
    where.mkdir(parents=True, exist_ok=True)
    return msgspec.structs.replace(record, forked_from=begun_from)
