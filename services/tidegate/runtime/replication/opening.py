"""Begins to replicate a service's file: before the service opens it (``take``), and after (``follow``).

Where a service has several instances, each of them waits for its turn before that (``await_turn``).
"""

import asyncio
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from structlog.stdlib import BoundLogger

from tidegate.core.errors import ConflictError, CorruptionError, UnavailableError
from tidegate.runtime.clock import Clock
from tidegate.runtime.drain import Drain
from tidegate.runtime.failure_log import ProblemLog
from tidegate.runtime.replication.changes import (
    all_rows,
    epoch_of,
    forgotten_through,
    newest_change,
    set_epoch,
    track,
)
from tidegate.runtime.replication.heartbeat import Heartbeat
from tidegate.runtime.replication.ownership import Local, Plan, Remote, plan_start, still_owned
from tidegate.runtime.replication.replica import BUSY_TIMEOUT_S, Replica, watched
from tidegate.runtime.replication.tables import read_tables
from tidegate.runtime.sqlite_reading import connect_read_only
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.threads import WorkerThread

if TYPE_CHECKING:
    from tidegate.runtime.replication.database import ReplicaDatabase

# How long a start waits for PostgreSQL, and for an owner to fall silent; then the process ends, to be started again.
START_WAIT_S = 60.0
RETRY_S = 1.0


class Taken(msgspec.Struct, frozen=True):
    """A replica that this process owns, and what is to be done with it."""

    epoch: int
    plan: Plan


class Kind(msgspec.Struct, frozen=True):
    """The file that is replicated. ``create``: makes an empty one at a path, as the service would."""

    run_id: str
    schema_version: int
    path: Path
    create: Callable[[Path], None]


async def await_turn(
    kind: Kind, database: "ReplicaDatabase", *, clock: Clock, drain: Drain, log: BoundLogger
) -> None:
    """Return once this instance owns the replica, with its file as the replica has it, or once draining.

    ``take`` goes on from there without waiting. An instance whose own file is the owner's returns at once.

    Raises:
        StaleFolderError, ConfigError: as ``take``.
    """
    thread, problems = WorkerThread("replica"), ProblemLog(log, "replica_not_read")
    try:
        while True:
            try:
                if await watched(thread, partial(_try_to_claim, kind, database, log), database):
                    return
                problems.note("")
            except UnavailableError as error:
                problems.note(str(error))
            if await drain.sleep(RETRY_S):
                return
    finally:
        thread.close()


async def take(kind: Kind, database: "ReplicaDatabase", *, clock: Clock, log: BoundLogger) -> Taken:
    """Own the replica, and fill the file from it where the file is missing or of an earlier owner.

    Raises:
        StaleFolderError: the replica is of another run, version or time than the file.
        ConflictError: another process owns it.
        UnavailableError: PostgreSQL did not answer for ``START_WAIT_S``.
        ConfigError: PostgreSQL refuses this user.
    """
    thread, deadline_s = WorkerThread("replica"), clock.monotonic_s() + START_WAIT_S
    try:
        while True:
            try:
                taken = await watched(thread, partial(_try_to_take, kind, database, log), database)
            except UnavailableError as error:
                if clock.monotonic_s() >= deadline_s:
                    raise
                log.warning("replica_not_taken", error=str(error))
            else:
                if taken is not None:
                    log.info("replica_taken", schema=database.schema, epoch=taken.epoch, plan=taken.plan)
                    return taken
                if clock.monotonic_s() >= deadline_s:
                    raise still_owned(database.schema)
            await asyncio.sleep(RETRY_S)
    finally:
        thread.close()


async def follow(
    writer: sqlite3.Connection,
    taken: Taken,
    kind: Kind,
    database: "ReplicaDatabase",
    *,
    clock: Clock,
    stats: StatsBoard,
    log: BoundLogger,
) -> Replica:
    """Note every change of ``writer`` from now on, and bring the replica up to date.

    Raises:
        ConflictError: another process took over.
        UnavailableError: PostgreSQL or the disk does not answer.
        ConfigError: PostgreSQL refuses this user.
    """
    try:
        tables = read_tables(writer)
        track(writer, tables, epoch=taken.epoch)
        newest = newest_change(writer)
    except sqlite3.OperationalError as error:
        raise UnavailableError(
            f"{kind.path} cannot be written", why=str(error), fix="free space on its disk; nothing was lost"
        ) from error

    def send() -> int:
        there = database.layout()
        if taken.plan != "copy" and all(there.get(table.name) == table.columns for table in tables):
            return 0
        with _reading(kind.path) as reader:
            database.copy(tables, all_rows(reader, tables), epoch=taken.epoch, through=newest)
        return newest

    thread = WorkerThread("replica")
    try:
        pushed_through = await watched(thread, send, database)
    finally:
        thread.close()
    replica = Replica(
        writer,
        kind.path,
        database,
        tables=tables,
        epoch=taken.epoch,
        pushed_through=pushed_through,
        clock=clock,
        stats=stats,
        log=log,
    )
    await replica.caught_up()
    return replica


def _try_to_take(kind: Kind, database: "ReplicaDatabase", log: BoundLogger) -> Taken | None:
    """None while another owner still sends heartbeats."""
    remote = database.read()
    plan = _planned(kind, _local(kind.path), remote, database)
    return None if plan is None else _take(kind, database, plan, seen=remote, log=log)


def _try_to_claim(kind: Kind, database: "ReplicaDatabase", log: BoundLogger) -> bool:
    """Whether ``take`` finds the file of the owner, as which it need not wait."""
    remote, local = database.read(), _local(kind.path)
    plan = _planned(kind, local, remote, database)
    if plan is None:
        return False
    if local.exists and remote is not None and local.epoch == remote.epoch:
        return True
    try:
        taken = _take(kind, database, plan, seen=remote, log=log)
    except ConflictError:
        return False  # another instance was faster
    if taken.plan == "copy":
        kind.create(kind.path)
        with closing(sqlite3.connect(kind.path)) as db, db:
            set_epoch(db, taken.epoch)
    return True


def _planned(kind: Kind, local: Local, remote: Remote | None, database: "ReplicaDatabase") -> Plan | None:
    return plan_start(
        local, remote, run_id=kind.run_id, schema_version=kind.schema_version, place=database.schema
    )


def _take(
    kind: Kind, database: "ReplicaDatabase", plan: Plan, *, seen: Remote | None, log: BoundLogger
) -> Taken:
    epoch = database.take(
        run_id=kind.run_id,
        schema_version=kind.schema_version,
        seen=seen,
        through=seen.through if seen is not None and plan == "push" else 0,
    )
    if plan == "fill":
        with Heartbeat(database, epoch, log):
            fill(kind, database, epoch=epoch)
    return Taken(epoch, plan)


def _local(path: Path) -> Local:
    if not path.is_file() or path.stat().st_size == 0:
        return Local(exists=False)
    with _reading(path) as db:
        return Local(exists=True, epoch=epoch_of(db), pushed_through=forgotten_through(db))


@contextmanager
def _reading(path: Path) -> Generator[sqlite3.Connection]:
    try:
        with closing(connect_read_only(path, timeout_s=BUSY_TIMEOUT_S)) as db:
            db.execute("BEGIN")
            yield db
    except sqlite3.OperationalError as error:
        raise UnavailableError(f"{path} cannot be read", why=str(error), fix="nothing was lost") from error
    except sqlite3.DatabaseError as error:
        raise CorruptionError(
            f"{path} cannot be read",
            why=str(error),
            fix="remove this service's folder: it is filled again from the replica in PostgreSQL",
        ) from error


def fill(kind: Kind, database: "ReplicaDatabase", *, epoch: int) -> None:
    """Write the file again from the replica. What only the file before it had was never sent to another process.

    Raises:
        UnavailableError: PostgreSQL or the disk does not answer; the next start begins again.
    """
    filling = kind.path.with_name(f"{kind.path.name}.filling")
    try:
        _remove(filling)
        kind.create(filling)
        layout = database.layout()
        with closing(sqlite3.connect(filling, isolation_level=None)) as db:
            db.execute("BEGIN")
            for table in read_tables(db):
                db.execute(f"DELETE FROM {table.name}")
                columns = [column for column in table.columns if column in layout.get(table.name, ())]
                if not columns:
                    continue
                insert = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
                for portion in database.rows(table.name, columns):
                    db.executemany(insert, portion)
            set_epoch(db, epoch)
            db.execute("COMMIT")
        database.fill_files()
        _remove(kind.path)
        filling.replace(kind.path)
    except (OSError, sqlite3.OperationalError) as error:
        raise UnavailableError(
            f"{kind.path} could not be filled from its replica",
            why=str(error),
            fix="free space on its disk; the next start begins again",
        ) from error


def _remove(path: Path) -> None:
    """A database, with what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
