"""``tidegate restore``."""

import asyncio
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tidegate.launch.backup.restoring import RestoredBackup, find_run
from tidegate.launch.backup.restoring import restore as restore_backup
from tidegate.launch.forking import RUN_YAML
from tidegate.runtime.object_storage.place import ObjectPlace, open_place
from tidegate.runtime.object_storage.urls import below


def restore(
    place: Annotated[
        str, typer.Argument(help="Place of the backups: the run file's backup.to, or the run's folder in it.")
    ],
    folder: Annotated[Path, typer.Argument(help="Run folder to make; empty, or not there.", metavar="DIR")],
) -> None:
    """Fill a run folder from its newest backup that is whole, every byte compared with its digest.

    `tidegate up DIR/run.yaml --dir DIR` resumes the run then, as in a folder that was copied. It is the run itself, and
    not another one: make sure that it trains nowhere else.
    """
    restored = asyncio.run(_restore(place, folder))
    sys.stdout.write("".join(f"{line}\n" for line in lines_of(restored, folder)))


async def _restore(url: str, folder: Path) -> RestoredBackup:
    def open_below(name: str) -> ObjectPlace:
        return open_place(below(url, name), setting="URL")

    found = await find_run(open_place(url, setting="URL"), open_below)
    return await restore_backup(found, folder, say=_print_progress)


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
