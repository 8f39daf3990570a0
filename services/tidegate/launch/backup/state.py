"""``backup.json`` of a run folder: the newest backup that this folder made, and why the last try failed, if it did."""

from contextlib import suppress
from pathlib import Path

import msgspec

from tidegate.runtime.files import replace_file

BACKUP_JSON = "backup.json"


class BackupState(msgspec.Struct, frozen=True):
    """``number``: 0 before the first backup. ``problem``: of the last try; empty if it succeeded."""

    place: str
    number: int = 0
    version: str = ""
    made_at_s: float = 0.0
    num_bytes: int = 0
    bytes_uploaded: int = 0
    problem: str = ""


def write_state(folder: Path, state: BackupState) -> None:
    """Replace the file; a full disk costs the note, not the backup."""
    with suppress(OSError):
        replace_file(folder / BACKUP_JSON, msgspec.json.encode(state) + b"\n")


def backup_problem(folder: Path) -> str:
    """Why the last try of a run's backup failed; empty if it succeeded, or before the first one ended."""
    state = read_state(folder)
    return f"backup: {state.problem}" if state is not None and state.problem else ""


def read_state(folder: Path) -> BackupState | None:
    """The file; None where there is none, or where it cannot be read."""
    try:
        return msgspec.json.decode((folder / BACKUP_JSON).read_bytes(), type=BackupState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
