"""``tidegate restore``."""

import asyncio
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from tidegate.cli.console import open_console
from tidegate.cli.json_output import write_json
from tidegate.core.errors import ConfigError
from tidegate.launch.backup.listing import ListedBackup, list_backups
from tidegate.launch.backup.restoring import RestoredBackup, find_run
from tidegate.launch.backup.restoring import restore as restore_backup
from tidegate.launch.forking import RUN_YAML
from tidegate.runtime.object_storage.place import ObjectPlace, open_place
from tidegate.runtime.object_storage.urls import below


def restore(
    place: Annotated[
        str, typer.Argument(help="Place of the backups: the run file's backup.to, or the run's folder in it.")
    ],
    folder: Annotated[
        Path | None, typer.Argument(help="Run folder to make; empty, or not there.", metavar="DIR")
    ] = None,
    number: Annotated[
        int | None, typer.Option(help="Restore this backup instead of the newest one that is whole.", min=1)
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the backups of the place, and restore nothing.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="With --list: print one JSON object a backup.")
    ] = False,
) -> None:
    """Fill a run folder from its newest backup that is whole, every byte compared with its digest.

    `tidegate up DIR/run.yaml --dir DIR` resumes the run then, as in a folder that was copied. It is the run itself, and
    not another one: make sure that it trains nowhere else.
    """
    if list_:
        if folder is not None or number is not None:
            raise ConfigError(
                "--list restores nothing, and a folder or --number is given", fix="remove them, or --list"
            )
        _print_list(asyncio.run(_list(place)), json=json)
        return
    if json:
        raise ConfigError("--json is of --list", fix="add --list, or remove --json")
    if folder is None:
        raise ConfigError(
            "There is no folder to restore into", fix="name a new one after the place, or add --list"
        )
    restored = asyncio.run(_restore(place, folder, number))
    sys.stdout.write("".join(f"{line}\n" for line in lines_of(restored, folder)))


async def _find(url: str) -> ObjectPlace:
    def open_below(name: str) -> ObjectPlace:
        return open_place(below(url, name), setting="URL")

    return await find_run(open_place(url, setting="URL"), open_below)


async def _restore(url: str, folder: Path, number: int | None) -> RestoredBackup:
    return await restore_backup(await _find(url), folder, say=_print_progress, number=number)


async def _list(url: str) -> list[ListedBackup]:
    return await list_backups(await _find(url))


def _print_list(backups: list[ListedBackup], *, json: bool) -> None:
    if json:
        for each in backups:
            write_json(_line_of(each))
        return
    table = Table(box=None, padding=(0, 2))
    for name in ("number", "as of", "version", "MB", "trained", ""):
        table.add_column(name, justify="right" if name in ("number", "MB", "trained") else "left")
    for each in map(_line_of, backups):
        made_at = datetime.fromtimestamp(each.made_at_s).astimezone()
        known = (
            f"{made_at:%Y-%m-%d %H:%M:%S %Z}",
            each.version,
            f"{each.num_bytes / 1e6:,.1f}",
            f"{each.trained:,}",
        )
        table.add_row(str(each.number), *(known if each.version else ("", "", "", "")), each.problem)
    open_console().print(table)


class BackupLine(msgspec.Struct, frozen=True):
    """One backup of ``restore --list``; without a version where its manifest cannot be read."""

    number: int
    version: str = ""
    made_at_s: float = 0.0
    num_bytes: int = 0
    admitted: int = 0
    trained: int = 0
    problem: str = ""


def _line_of(backup: ListedBackup) -> BackupLine:
    manifest = backup.manifest
    if manifest is None:
        return BackupLine(backup.number, problem=backup.problem)
    return BackupLine(
        number=backup.number,
        version=manifest.version,
        made_at_s=manifest.made_at_s,
        num_bytes=manifest.num_bytes(),
        admitted=manifest.counts.admitted,
        trained=manifest.counts.trained,
        problem=backup.problem,
    )


def lines_of(restored: RestoredBackup, folder: Path) -> list[str]:
    """What was restored, what was lost, and what to do."""
    manifest, counts = restored.manifest, restored.manifest.counts
    made_at = datetime.fromtimestamp(manifest.made_at_s).astimezone()
    lines = [
        f"{manifest.run_id} is in {folder} as of {made_at:%Y-%m-%d %H:%M:%S %Z}, at version {manifest.version}.",
        f"It has admitted {counts.admitted:,} trajectories and trained {counts.trained:,}. What was admitted or trained"
        " after that moment was on the other machine alone, and is lost.",
    ]
    untrained = counts.beyond_checkpoint + counts.waiting
    if untrained:
        lines.append(
            f"No backup has payloads: {untrained:,} finished trajectories cannot be trained any more, and are dropped"
            f" at the start: {counts.waiting:,} that waited (reason failed), {counts.beyond_checkpoint:,} that were"
            " trained after the checkpoint (reason superseded). `tidegate audit` counts them."
        )
    if restored.updates_lost:
        lines.append(
            f"{restored.updates_lost:,} updates are made again from version {manifest.version}, with new trajectories."
        )
    if counts.in_flight:
        lines.append(
            f"{counts.in_flight:,} trajectories that were in flight are played again by other actors."
        )
    lines += [f"It needs besides: {each}" for each in manifest.left_out]
    resume = shlex.join(["tidegate", "up", str(folder / RUN_YAML), "--dir", str(folder)])
    return [*lines, f"Resume it with: {resume}"]


def _print_progress(line: str) -> None:
    sys.stderr.write(f"tidegate: {line}\n")
