"""``tidegate runs``: the list of runs, and the removal of old ones."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tidegate.cli.console import open_console
from tidegate.cli.json_output import write_json
from tidegate.cli.run_list import RunFolders, RunLine, line_of, name_of
from tidegate.cli.up.view import number
from tidegate.core.distributions import parse_duration
from tidegate.core.errors import ConfigError, FolderInUseError
from tidegate.core.prices import dollars
from tidegate.launch.run_folder import RUNS, lock


def runs(
    place: Annotated[Path, typer.Argument(help="Folder with runs.", metavar="DIR")] = RUNS,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove runs that are not running; needs --keep or --older-than.")
    ] = False,
    keep: Annotated[int | None, typer.Option(min=0, help="With --prune: keep the newest N.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="With --prune: only runs whose last update is older: 12h, 7d.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --prune: remove them; without it they are only listed.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the runs below a folder, the newest first, with their score, lag and audit.

    `tidegate ui` shows and compares them. --prune removes the folders of old runs with everything in them.
    """
    if not prune:
        lines = RunFolders(place).lines()
        if json:
            write_json({"runs": lines})
        else:
            _print(lines)
        return
    if keep is None and older_than is None:
        raise ConfigError("--prune names no runs", fix="add --keep 10, --older-than 7d, or both")
    age_s = 0.0 if older_than is None else parse_duration(older_than)
    # A link is left alone: what it leads to is not below this folder, and may have the name of a run that is.
    folders = {name_of(path): path for path in RunFolders(place).folders() if not path.is_symlink()}
    lines = list(map(line_of, folders.values()))
    chosen = prunable(lines, keep=keep or 0, older_than_s=age_s, now_s=time.time())
    removed = [line for line in chosen if not yes or _remove(folders[line.name])]
    if json:
        write_json({"removed" if yes else "would_remove": [line.name for line in removed]})
        return
    console = open_console()
    for line in removed:
        console.print(f"{'removed' if yes else 'would remove'} {folders[line.name]}", soft_wrap=True)
    if not yes:
        console.print(f"{len(removed)} runs; add --yes to remove them")


def prunable(lines: Sequence[RunLine], *, keep: int, older_than_s: float, now_s: float) -> list[RunLine]:
    """The runs that may go: beyond the newest ``keep`` and older than that; never one that runs or cannot be read.

    ``lines``: the newest first. A run's age is counted from its last update, or from its start if it has none.
    """
    return [
        line
        for line in lines[keep:]
        if not line.problem
        and line.state != "running"
        and now_s - (line.last_at_s or line.started_at_s) >= older_than_s
    ]


def _remove(folder: Path) -> bool:
    """Remove a run's folder; False if a platform has started in it meanwhile."""
    try:
        descriptor = lock(folder)
    except FolderInUseError:
        return False
    try:
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)
    return True


def _print(lines: Sequence[RunLine]) -> None:
    has_costs = any(line.usd is not None for line in lines)
    table = Table(box=None, header_style="bright_black", pad_edge=False)
    for name, justify in (
        ("folder", "left"),
        ("environment", "left"),
        ("state", "left"),
        ("score", "right"),
        ("updates", "right"),
        ("lag", "right"),
        ("audit", "left"),
        *([("cost", "right")] if has_costs else []),
        ("started", "left"),
    ):
        # The name is what other commands are given: a narrow terminal cuts the others first.
        width = max(map(len, (line.name for line in lines)), default=0) if name == "folder" else None
        table.add_column(
            name, justify="right" if justify == "right" else "left", no_wrap=True, min_width=width
        )
    for line in lines:
        table.add_row(*_row(line, has_costs=has_costs))
    console = open_console()
    console.print(table if lines else "There is no run here.")
    for line in lines:
        if line.problem:
            console.print(f"{line.name}: {line.problem}", soft_wrap=True)


def _row(line: RunLine, *, has_costs: bool) -> tuple[str, ...]:
    if line.problem:
        return (line.name, "", "unreadable")
    state = f"ended: {line.ended_by}" if line.state == "ended" else line.state
    audit = "" if line.balanced is None else "balanced" if line.balanced else "NOT balanced"
    return (
        line.name,
        line.env,
        state,
        "" if line.score is None else number(line.score),
        f"{line.step:,}",
        "" if line.lag_max is None else f"{line.lag_max} of {line.max_lag}",
        audit,
        *(["" if line.usd is None else dollars(line.usd)] if has_costs else []),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(line.started_at_s)),
    )
