"""``tidegate fork``."""

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.up.command import TRAIN
from tidegate.core.distributions import parse_duration
from tidegate.launch import run_folder as folders
from tidegate.launch.beginning import begun
from tidegate.launch.local_files import require_local
from tidegate.launch.named_version import BEST, NEWEST, best_version_of, version_of
from tidegate.launch.overrides import apply_overrides
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_target import target_of
from tidegate.runtime.loading import load


def fork(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder to fork (default: the newest).", metavar="RUN")
    ] = None,
    at: Annotated[
        str,
        typer.Option(help="Version to begin from: newest, best, or as 0-3fa2@40; a checkpoint must hold it."),
    ] = NEWEST,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of the parent's run file: path.to.key=value; repeatable."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Target that ends the run (default: the run file's).")
    ] = None,
    for_: Annotated[str | None, typer.Option("--for", help="Time limit: 90s, 5m, 1h30m.")] = None,
    headless: Annotated[
        bool, typer.Option("--headless", help="Print lines instead of the live view.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object on the last line.")
    ] = False,
    folder: Annotated[Path | None, typer.Option("--dir", help="Folder of the new run.")] = None,
) -> None:
    """Train on from a checkpoint of another run: its policy, optimiser and schedules, under other settings.

    The parent is only read; it may be running. The fork's versions continue the parent's numbers in a lineage that
    names the parent's as its own parent; its counts, its returns and its audit start at zero. Resume a fork by
    `tidegate up FOLDER/run.yaml --dir FOLDER`.
    """
    parent = folders.find_folder(run)
    record = require_local(folders.read_plan(parent)[0])
    plan = parse_plan(apply_overrides(record.run_file, set_ or []), source=str(parent / folders.RUN_JSON))
    target = target_of(plan, until=until)
    limit_s = parse_duration(for_) if for_ is not None else None
    where = folder or folders.default_folder(plan)
    version = best_version_of(parent) if at == BEST else version_of(at, option="--at")
    with begun(plan, folder=where) as preflight:
        train, fork_run = load(TRAIN), load("tidegate.launch.forking:fork_run")
        succeeded = train(
            where,
            fork_run(parent, plan, version=version, folder=where),
            plan,
            target,
            limit_s=limit_s,
            target_required=until is not None,
            preflight=preflight,
            headless=headless,
            json=json,
        )
    raise typer.Exit(0 if succeeded else 1)
