"""``backup.json`` of a run folder: its newest complete backup, and what failed since.

Written by the process that makes backups, and by `tidegate up` for how often the run file asks for one. Read by
admission, which exports it, by the supervisor and by the commands: they also see a process that hangs or has died,
because time passes and the newest backup stays the same.
"""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tidegate.core.errors import (
    ConflictError,
    CorruptionError,
    DeadlineError,
    PermissionDeniedError,
    TidegateError,
    UnavailableError,
)
from tidegate.runtime.files import replace_file

BACKUP_JSON = "backup.json"
# Periods without a new complete backup after which something is wrong: within two, one may take long, or fail once.
OVERDUE_PERIODS = 3.0


class NoSpaceError(UnavailableError):
    """The disk of a run has too little space for the copies that a backup is made from."""


class BackupState(msgspec.Struct, frozen=True):
    """``number``: 0 before the first backup. ``problem``: of the last try; empty if it succeeded.

    ``made_at_s``: the moment whose state the newest backup holds, and ``duration_s`` how long it took to make.
    ``every_s``: from one to the next, 0 if none is due; ``begun_at_s``: since when. ``failures``: tries of this folder
    that failed, by cause. ``is_last``: the run is complete, and its last backup not made yet.
    """

    place: str
    number: int = 0
    version: str = ""
    made_at_s: float = 0.0
    num_bytes: int = 0
    bytes_uploaded: int = 0
    problem: str = ""
    duration_s: float = 0.0
    every_s: float = 0.0
    begun_at_s: float = 0.0
    failures: dict[str, int] = {}
    is_last: bool = False


def write_state(folder: Path, state: BackupState) -> None:
    """Replace the file; a full disk costs the note, not the backup."""
    with suppress(OSError):
        replace_file(folder / BACKUP_JSON, msgspec.json.encode(state) + b"\n")


def read_state(folder: Path) -> BackupState | None:
    """The file; None where there is none, or where it cannot be read."""
    try:
        return msgspec.json.decode((folder / BACKUP_JSON).read_bytes(), type=BackupState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def expect_backups(folder: Path, *, place: str, every_s: float, now_s: float) -> None:
    """Note that a backup is due every ``every_s`` from now on. Of another place the folder has none yet."""
    before = read_state(folder)
    known = before if before is not None and before.place == place else BackupState(place=place)
    failures = before.failures if before is not None else {}
    state = msgspec.structs.replace(
        known, every_s=every_s, begun_at_s=now_s, failures=failures, is_last=False
    )
    write_state(folder, state)


def expect_no_backups(folder: Path, *, but_one: bool = False) -> None:
    """Note that none is due any more, or ``but_one``, the last; what was made stays known."""
    before = read_state(folder)
    if before is not None and (before.every_s or before.is_last != but_one):
        write_state(folder, msgspec.structs.replace(before, every_s=0.0, is_last=but_one))


def is_expected(folder: Path) -> bool:
    """Whether a process that makes backups has another to make."""
    state = read_state(folder)
    return state is not None and (state.every_s > 0.0 or state.is_last)


def with_failure(state: BackupState, error: TidegateError | OSError) -> BackupState:
    """The state after a try that failed."""
    cause = failure_cause(error)
    return msgspec.structs.replace(
        state,
        problem=f"the last try failed: {error}",
        failures={**state.failures, cause: state.failures.get(cause, 0) + 1},
    )


def failure_cause(error: TidegateError | OSError) -> str:
    """Why a try failed, in one word, as the metric's label has it."""
    match error:
        case OSError() | NoSpaceError():
            return "disk"
        case PermissionDeniedError():
            return "refused"
        case DeadlineError():
            return "deadline"
        case UnavailableError():
            return "unavailable"
        case ConflictError():
            return "conflict"
        case CorruptionError():
            return "damaged"
        case _:
            return "other"


def periods_without(state: BackupState, *, now_s: float) -> float:
    """Time without a new complete backup, in periods; 0 where none is due."""
    if state.every_s <= 0.0:
        return 0.0
    return max(0.0, now_s - max(state.made_at_s, state.begun_at_s)) / state.every_s


def backup_problem(state: BackupState, *, now_s: float) -> str:
    """What is wrong with the backups of a run that trains; empty if nothing is."""
    known = [each for each in (_overdue(state, now_s=now_s), state.problem) if each]
    return f"backup: {'; '.join(known)}" if known else ""


def backup_sentence(state: BackupState | None, *, running: bool, now_s: float) -> str:
    """The newest backup of a run and what is wrong, without a subject; empty where none was ever asked for.

    ``running``: a backup may be due.
    """
    if state is None:
        return ""
    known = [_newest(state, now_s=now_s), _overdue(state, now_s=now_s) if running else "", state.problem]
    return "; ".join(filter(None, known))


def _newest(state: BackupState, *, now_s: float) -> str:
    if not state.number:
        return f"none is complete yet in {state.place}"
    made_at = datetime.fromtimestamp(state.made_at_s, tz=UTC)
    return (
        f"number {state.number} in {state.place} holds version {state.version} as of {made_at:%Y-%m-%d %H:%M:%S} UTC"
        f" ({_span(now_s - state.made_at_s)} ago): {state.num_bytes / 1e6:,.1f} MB, made in {_span(state.duration_s)}"
    )


def _overdue(state: BackupState, *, now_s: float) -> str:
    periods = periods_without(state, now_s=now_s)
    if periods <= OVERDUE_PERIODS:
        return ""
    return (
        f"none was completed for {_span(periods * state.every_s)}, and one is due every {_span(state.every_s)}:"
        " see logs/backup.log"
    )


def _span(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s" if seconds >= 10.0 else f"{max(0.0, seconds):.1f} s"
