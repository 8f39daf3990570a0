"""A run folder that goes on, its backups in a folder as a place, and what they restore."""

import asyncio
from pathlib import Path
from typing import Any

from tests.unit.cli.run_folder import write_checkpoint, write_progress
from tidegate.cli.accounting import ledger_path
from tidegate.cli.backup.command import Backups
from tidegate.launch.backup.restoring import RestoredBackup, restore
from tidegate.launch.run_folder import read_record
from tidegate.runtime.backup_state import BackupState, read_state
from tidegate.runtime.object_storage.place import ObjectPlace, open_place
from tidegate.trajectory_store.verifying import read_head


def advance(folder: Path, *, seq: int, step: int) -> None:
    """Two more trajectories, an update of version ``step``, and a checkpoint after it."""
    record = read_record(folder)
    write_progress(folder, record, seqs=(seq, seq + 1), step=step)
    write_checkpoint(folder, record, step=step + 1)


def place_at(bucket: Path, kind: type[ObjectPlace] = ObjectPlace) -> Any:
    opened = open_place(bucket.as_uri(), setting="--to", makes_folder=True)
    return kind(opened._store, url=opened.url)  # pyright: ignore[reportPrivateUsage]


def back_up(folder: Path, bucket: Path, *, keep: int = 3, place: ObjectPlace | None = None) -> None:
    made = Backups(
        folder, place or place_at(bucket), read_record(folder).run_id, keep=keep, say=lambda _line: None
    )
    asyncio.run(made.make())


def restored(bucket: Path, to: Path, *, number: int | None = None) -> RestoredBackup:
    return asyncio.run(restore(place_at(bucket), to, say=lambda _line: None, number=number))


def head_of(folder: Path) -> str:
    return read_head(ledger_path(folder))


def objects(bucket: Path) -> set[str]:
    return {path.relative_to(bucket).as_posix() for path in (bucket / "objects").rglob("*") if path.is_file()}


def state_of(folder: Path) -> BackupState:
    state = read_state(folder)
    assert state is not None
    return state
