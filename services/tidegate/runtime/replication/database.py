"""The replica in PostgreSQL: a schema of its own for each run and service, with the tables of the file.

Synchronous; one thread at a time uses it. Every statement has a deadline, of the server and of the connection.

A connection may lead to a pooler, such as PgBouncer, that gives each transaction another session of the server: what a
session would remember (deadlines, prepared statements) is then told to each transaction, and every statement that
changes something is in one.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from blake3 import blake3
from psycopg import errors as postgres_errors

from tidegate.core.errors import ConfigError, TidegateError, UnavailableError
from tidegate.runtime.replication.changes import ROWS_AT_ONCE, ChangedRows
from tidegate.runtime.replication.ownership import Remote, lost_rows, taken_over
from tidegate.runtime.replication.replicated_files import ReplicatedFiles, sql
from tidegate.runtime.replication.tables import Table
from tidegate.runtime.replication.texts import from_postgres, to_postgres

CONNECT_S = 5
STATEMENT_MS = 10_000
# A process that was lost with its node in the middle of a transaction closes no connection. PostgreSQL, which by itself
# would notice that after two hours, ends the transaction: until then no other owner can take the replica.
IDLE_IN_TRANSACTION_MS = 5_000
# A server that hangs answers no statement's end: the connection of a call that gets nowhere for so long is cut.
SILENT_S = 12.0
# A push that took longer sends another heartbeat at its end: that of its begin is seen no earlier.
LONG_PUSH_S = 0.5
# Of PgBouncer, to parameters of a session.
POOLER_REFUSAL = "unsupported startup parameter"
# PostgreSQL cuts longer names off, and two of them could become one.
_NAME_CHARS_MAX = 63
_HASH_CHARS = 8

_REPLICA_TABLE = """
CREATE TABLE IF NOT EXISTS {schema}.replica (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    run_id text NOT NULL,
    schema_version integer NOT NULL,
    epoch bigint NOT NULL,
    whole boolean NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    through bigint NOT NULL DEFAULT 0
)
"""

# Seconds since the epoch.
_HEARTBEAT = "extract(epoch FROM heartbeat_at)::float8"

Connection = psycopg.Connection[tuple[Any, ...]]


def schema_name(run_id: str, service: str) -> str:
    """The schema of one service of a run: readable, and another one for each run id."""
    words = re.sub(r"[^a-z0-9]+", "_", f"tidegate_{run_id}_{service}".lower())
    digest = blake3(f"{run_id}\0{service}".encode()).hexdigest()[:_HASH_CHARS]
    return f"{words[: _NAME_CHARS_MAX - _HASH_CHARS - 1].rstrip('_')}_{digest}"


def check_server(uri: str) -> None:
    """Connect once.

    Raises:
        UnavailableError: it does not answer.
        ConfigError: it refuses this user.
    """
    try:
        _connect(uri).close()
    except psycopg.Error as error:
        raise _explained(error) from error


class ReplicaDatabase:
    """One service's replica. It connects when it is needed, and again after any failure."""

    def __init__(self, uri: str, *, schema: str, files: ReplicatedFiles | None = None) -> None:
        """``uri``: as libpq has it. Nothing is opened yet."""
        self._uri = uri
        self.schema = schema
        self._files = files
        self._open: Connection | None = None
        self._opening = threading.Lock()
        self._progressed_at_s = time.monotonic()

    def close(self) -> None:
        """Let go of the connection."""
        with self._opening:
            if self._open is not None:
                self._open.close()
                self._open = None

    def cut_if_silent(self, *, for_s: float | None = None) -> None:
        """Called by another thread: end a call that got nowhere for so long, with ``UnavailableError``."""
        silent_s = SILENT_S if for_s is None else for_s
        with self._opening:
            if self._open is not None and time.monotonic() - self._progressed_at_s > silent_s:
                with closing(socket.socket(fileno=os.dup(self._open.fileno()))) as connection:
                    connection.shutdown(socket.SHUT_RDWR)

    def read(self) -> Remote | None:
        """Who owns the replica; None before there is one.

        Raises:
            UnavailableError: PostgreSQL does not answer.
            ConfigError: it refuses this user.
        """
        with self._connected() as db:
            known = db.execute(
                "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'replica'", (self.schema,)
            ).fetchone()
            if known is None:
                return None
            found = db.execute(
                sql(
                    "SELECT run_id, schema_version, epoch, whole,"
                    f" extract(epoch FROM clock_timestamp() - heartbeat_at)::float8, through, {_HEARTBEAT}"
                    f" FROM {self.schema}.replica"
                )
            ).fetchone()
            return None if found is None else Remote(*found)

    def take(self, *, run_id: str, schema_version: int, seen: Remote | None, through: int) -> int:
        """Become the owner after the one that was ``seen`` (None: there was none); returns the epoch.

        One that sent a heartbeat since then stays the owner: this waits for the end of a push that takes long.

        ``through``: the place of the last note of this owner's file that the replica has.

        Raises:
            ConflictError: another process was faster, or the owner is alive.
            UnavailableError, ConfigError: as ``read``.
        """
        with self._connected() as db, self._transaction(db):
            if seen is None:
                db.execute(sql(f"CREATE SCHEMA IF NOT EXISTS {self.schema}"))
                db.execute(sql(_REPLICA_TABLE.format(schema=self.schema)))
                taken = db.execute(
                    sql(
                        f"INSERT INTO {self.schema}.replica (run_id, schema_version, epoch, whole, heartbeat_at)"
                        " VALUES (%s, %s, 1, false, clock_timestamp()) ON CONFLICT DO NOTHING RETURNING epoch"
                    ),
                    (run_id, schema_version),
                ).fetchone()
            else:
                taken = db.execute(
                    sql(
                        f"UPDATE {self.schema}.replica SET epoch = epoch + 1, heartbeat_at = clock_timestamp(),"
                        f" through = %s WHERE epoch = %s AND {_HEARTBEAT} = %s RETURNING epoch"
                    ),
                    (through, seen.epoch, seen.heartbeat_at_s),
                ).fetchone()
        if taken is None:
            raise taken_over(self.schema)
        return int(taken[0])

    def send_heartbeat(self, *, epoch: int) -> None:
        """Say that the owner is alive, by a connection that nothing else uses; one that is no owner says nothing.

        Raises:
            UnavailableError, ConfigError: as ``read``.
        """
        self._set_heartbeat("clock_timestamp()", epoch)

    def release(self, *, epoch: int) -> None:
        """Say that the owner ends, so that the next one does not wait until it is considered dead.

        Raises:
            UnavailableError, ConfigError: as ``read``.
        """
        self._set_heartbeat("to_timestamp(0)", epoch)

    def _set_heartbeat(self, at: str, epoch: int) -> None:
        try:
            with closing(_connect(self._uri)) as db, self._transaction(db):
                db.execute(
                    sql(f"UPDATE {self.schema}.replica SET heartbeat_at = {at} WHERE epoch = %s"), (epoch,)
                )
        except psycopg.Error as error:
            raise _explained(error) from error

    def layout(self) -> dict[str, tuple[str, ...]]:
        """The columns of each replicated table, by its name.

        Raises:
            UnavailableError, ConfigError: as ``read``.
        """
        with self._connected() as db:
            found = db.execute(
                "SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position)"
                " FROM information_schema.columns WHERE table_schema = %s GROUP BY table_name",
                (self.schema,),
            )
            return {name: tuple(columns) for name, columns in found}

    def copy(
        self, tables: Sequence[Table], changes: Iterable[ChangedRows], *, epoch: int, through: int
    ) -> None:
        """Replace what is there by whole tables, in one transaction: what was there stays until the end.

        ``through``: the place of the last note of a change that they have.

        Raises:
            ConflictError: another process owns the replica.
            UnavailableError, ConfigError: as ``read``.
        """
        with self._connected() as db, self._transaction(db):
            self._hold(db, epoch, after=0, through=through)
            for table in tables:
                db.execute(sql(f"DROP TABLE IF EXISTS {self._named(table)}"))
                columns = ", ".join(f'"{n}" {t}' for n, t in zip(table.columns, table.types, strict=True))
                db.execute(
                    sql(f"CREATE TABLE {self._named(table)} ({columns}, PRIMARY KEY ({_listed(table.key)}))")
                )
            if self._files is not None:
                self._files.create(db, self.schema)
            self._push_all(db, changes)
            db.execute(
                sql(f"UPDATE {self.schema}.replica SET whole = true, heartbeat_at = clock_timestamp()")
            )

    def push(self, changes: Iterable[ChangedRows], *, epoch: int, after: int, through: int) -> None:
        """Write the rows that changed from note ``after`` to ``through``, all or none, and the time of the heartbeat.

        Raises:
            ReplicaBehindError: PostgreSQL has not all up to ``after`` any more, though it said so.
            ConflictError: another process owns the replica.
            UnavailableError: PostgreSQL does not answer, or its disk is full; nothing was written, or all of it.
            ConfigError: it refuses this user.
        """
        started_at_s = time.monotonic()
        with self._connected() as db, self._transaction(db):
            # Held until the end: an owner to come waits for these rows, and none of before can add to them.
            self._hold(db, epoch, after=after, through=through)
            self._push_all(db, changes)
            if time.monotonic() - started_at_s > LONG_PUSH_S:
                db.execute(sql(f"UPDATE {self.schema}.replica SET heartbeat_at = clock_timestamp()"))

    def rows(self, name: str, columns: Sequence[str]) -> Iterator[list[tuple[Any, ...]]]:
        """Columns of all rows of a table, in portions.

        Raises:
            UnavailableError, ConfigError: as ``read``.
        """
        with (
            self._connected() as db,
            self._transaction(db),
            db.cursor("rows", binary=True) as cursor,
        ):
            cursor.execute(sql(f'SELECT {_listed(columns)} FROM {self.schema}."{name}"'))
            while portion := cursor.fetchmany(ROWS_AT_ONCE):
                self._progress()
                yield [
                    tuple([from_postgres(value) if isinstance(value, str) else value for value in row])
                    for row in portion
                ]
                self._progress()

    def fill_files(self) -> None:
        """Write what belongs to the rows into the folder of the service.

        Raises:
            UnavailableError, ConfigError: as ``read``.
            OSError: the disk is full or does not answer.
        """
        if self._files is not None:
            with self._connected() as db:
                self._files.fill(db, self.schema)

    def _hold(self, db: Connection, epoch: int, *, after: int, through: int) -> None:
        """Keep the replica until the transaction's end, and advance it from note ``after`` to ``through``."""
        held = db.execute(
            sql(
                f"UPDATE {self.schema}.replica SET heartbeat_at = clock_timestamp(),"
                " through = CASE WHEN through >= %s THEN %s ELSE through END WHERE epoch = %s RETURNING through"
            ),
            (after, through, epoch),
        ).fetchone()
        if held is None:
            raise taken_over(self.schema)
        if held[0] != through:
            raise lost_rows(self.schema)

    def _push_all(self, db: Connection, changes: Iterable[ChangedRows]) -> None:
        for changed in changes:
            self._progress()
            self._push(db, changed)
            if self._files is not None:
                self._files.push(db, self.schema, changed)
        if self._files is not None:
            self._files.finish(db, self.schema)

    def _push(self, db: Connection, changed: ChangedRows) -> None:
        table, name = changed.table, self._named(changed.table)
        if changed.rows:
            others = [column for column in table.columns if column not in table.key]
            update = ", ".join(f'"{column}" = EXCLUDED."{column}"' for column in others)
            arrays = ", ".join(f"%b::{kind}[]" for kind in table.types)
            db.execute(
                sql(
                    f"INSERT INTO {name} ({_listed(table.columns)}) SELECT * FROM unnest({arrays})"
                    f" ON CONFLICT ({_listed(table.key)}) DO {f'UPDATE SET {update}' if others else 'NOTHING'}"
                ),
                _columns(changed.rows, table.types),
            )
        if changed.gone:
            arrays = ", ".join(f"%b::{kind}[]" for kind in table.key_types)
            db.execute(
                sql(f"DELETE FROM {name} WHERE ({_listed(table.key)}) IN (SELECT * FROM unnest({arrays}))"),
                _columns(changed.gone, table.key_types),
            )

    @contextmanager
    def _transaction(self, db: Connection) -> Generator[None]:
        with db.transaction():
            if db.prepare_threshold is None:
                settings = ", ".join(
                    f"set_config('{name}', '{value_ms}', true)" for name, value_ms in _deadlines_ms().items()
                )
                db.execute(sql(f"SELECT {settings}"))
            yield

    def _progress(self) -> None:
        self._progressed_at_s = time.monotonic()

    def _named(self, table: Table) -> str:
        return f'{self.schema}."{table.name}"'

    @contextmanager
    def _connected(self) -> Generator[Connection]:
        """The connection, closed when anything fails: what became of an open transaction may be unknown."""
        self._progress()
        try:
            if self._open is None:
                opened = _connect(self._uri)
                with self._opening:
                    self._open = opened
                self._progress()
            yield self._open
        except BaseException as error:
            self.close()
            if isinstance(error, psycopg.Error):
                raise _explained(error) from error
            raise


def _deadlines_ms() -> dict[str, int]:
    """Settings of PostgreSQL, of a session or of a transaction."""
    return {
        "statement_timeout": STATEMENT_MS,
        "lock_timeout": STATEMENT_MS,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
    }


def _connect(uri: str) -> Connection:
    """A connection; one that leads to a pooler has no ``prepare_threshold``."""
    try:
        db = _open(
            uri, options=" ".join(f"-c {name}={value_ms}" for name, value_ms in _deadlines_ms().items())
        )
    except psycopg.OperationalError as error:
        if POOLER_REFUSAL not in str(error):
            raise
        db = _open(uri, options="")
    if db.execute("SELECT setting FROM pg_settings WHERE name = 'statement_timeout'").fetchone() != (
        str(STATEMENT_MS),
    ):
        db.prepare_threshold = None
    return db


def _open(uri: str, *, options: str) -> Connection:
    return psycopg.connect(
        uri,
        autocommit=True,
        connect_timeout=CONNECT_S,
        application_name="tidegate",
        options=options,
        keepalives_idle=CONNECT_S,
        keepalives_interval=1,
        keepalives_count=3,
        tcp_user_timeout=STATEMENT_MS,
    )


_REFUSALS = (
    postgres_errors.InvalidAuthorizationSpecification,
    postgres_errors.InvalidPassword,
    postgres_errors.InsufficientPrivilege,
    postgres_errors.InvalidCatalogName,
)


def _explained(error: psycopg.Error) -> TidegateError:
    why = " ".join(str(error).split())
    if isinstance(error, _REFUSALS):
        return ConfigError(
            "PostgreSQL refuses the user of the replica",
            why=why,
            fix="check the address and the password, and grant the user CREATE on the database",
        )
    return UnavailableError(
        "PostgreSQL does not answer, or refuses what its replica needs",
        why=why,
        fix="see that it runs, can be reached, knows the user and has free space; nothing was lost",
    )


def _columns(rows: Sequence[tuple[Any, ...]], types: Sequence[str]) -> list[list[Any]]:
    """Rows as an array for each column."""
    return [
        to_postgres(column) if kind == "text" else list(column)
        for column, kind in zip(zip(*rows, strict=True), types, strict=True)
    ]


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)
