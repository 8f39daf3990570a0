"""Whether a service may take a replica, and whether its file or the replica is the truth.

A replica has one owner at a time, numbered by its epoch. Taking it raises the epoch, after which every push of an
earlier owner is refused.
"""

from typing import Literal, TypeAlias

import msgspec

from tidegate.core.errors import ConflictError, StaleFolderError, TidegateError

# An owner pushes once a second at least, which is its heartbeat; without one for so long it is considered dead.
SILENT_S = 5.0

# What a start does: copy the whole file into a new replica, push what the file is ahead by, or fill the file.
Plan: TypeAlias = Literal["copy", "push", "fill"]


class ReplicaBehindError(TidegateError):
    """The replica lacks what it once had, and its owner's file has."""


class Local(msgspec.Struct, frozen=True):
    """The file of this start. ``epoch``: None for one that was not replicated, or without its notes.

    ``pushed_through``: the place of the last note that was removed, because PostgreSQL had it.
    """

    exists: bool
    epoch: int | None = None
    pushed_through: int = 0


class Remote(msgspec.Struct, frozen=True):
    """What PostgreSQL has. ``whole``: a first copy was finished. ``silent_s``: since its owner's last heartbeat.

    ``through``: the place of the owner's last note that it has. ``heartbeat_at_s``: by PostgreSQL's clock.
    """

    run_id: str
    schema_version: int
    epoch: int
    whole: bool
    silent_s: float
    through: int = 0
    heartbeat_at_s: float = 0.0


def plan_start(
    local: Local, remote: Remote | None, *, run_id: str, schema_version: int, place: str
) -> Plan | None:
    """What a start does; None: wait, another owner sent a heartbeat a moment ago.

    Raises:
        StaleFolderError: the replica is of another run or version, or of another time than the file.
    """
    if remote is None:
        return "copy"
    _check_kind(remote, run_id=run_id, schema_version=schema_version, place=place)
    is_own = local.exists and local.epoch == remote.epoch
    if not remote.whole:
        # No answer was sent by then. Its owner may be about to finish it.
        return "copy" if is_own or remote.silent_s >= SILENT_S else None
    if local.exists and (local.epoch is None or local.epoch > remote.epoch):
        raise StaleFolderError(
            f"The files of this service and their replica in PostgreSQL ({place}) are of different times",
            why="the run went on without the replica, or one of the two was restored from a backup",
            fix=f"keep the one that is right: remove this service's folder, or `DROP SCHEMA {place} CASCADE`",
        )
    if is_own:
        # PostgreSQL lost what it had acknowledged, and the file has it: an asynchronous standby was promoted.
        return "push" if local.pushed_through <= remote.through else "copy"
    return "fill" if remote.silent_s >= SILENT_S else None


def still_owned(place: str) -> ConflictError:
    """Why a start ends that waited long enough for an owner that goes on."""
    return ConflictError(
        f"Another process replicates this service of the run ({place})",
        why="it was heard of again and again while this one waited for it to end",
        fix="stop the other one: a run has one task queue and one trajectory store",
    )


def taken_over(place: str) -> ConflictError:
    """Why a push is refused."""
    return ConflictError(
        f"Another process took over the replica in PostgreSQL ({place})",
        why="this one was considered dead; nothing that it did since was sent to another process",
        fix="nothing: a process that starts again takes the rows of the replica, unless the other one goes on",
    )


def lost_rows(place: str) -> ReplicaBehindError:
    """Why a push copies everything again."""
    return ReplicaBehindError(
        f"PostgreSQL has lost rows of {place} that it had acknowledged",
        why="an asynchronous standby was promoted, or the database was restored from a backup",
        fix="nothing: they are copied again from the service's file",
    )


def _check_kind(remote: Remote, *, run_id: str, schema_version: int, place: str) -> None:
    if remote.run_id != run_id:
        raise StaleFolderError(
            f"The replica in PostgreSQL ({place}) belongs to run {remote.run_id!r}, not to {run_id!r}",
            fix="name another database, or remove the schema if that run is over",
        )
    if remote.schema_version != schema_version:
        raise StaleFolderError(
            f"The replica in PostgreSQL ({place}) has schema version {remote.schema_version}, this program reads"
            f" version {schema_version}",
            fix="finish the run with the version of Tidegate that began it, or start a new run",
        )
