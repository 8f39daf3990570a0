"""The ledger's tables, and opening them: for the one writer, or for reading a live or stopped run's file."""

import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from tidegate.core.errors import (
    CorruptionError,
    NotFoundError,
    StaleFolderError,
    TidegateError,
    UnavailableError,
)
from tidegate.runtime.sqlite_errors import is_passing
from tidegate.runtime.sqlite_reading import connect_read_only
from tidegate.trajectory_store import budgets, counted_rows, hash_chain
from tidegate.trajectory_store.hash_chain import CHAIN_TABLE, FOLDED_TABLES

SCHEMA_VERSION = 5
LEDGER_FILE = "ledger.sqlite"
# How long a writer waits for another connection's lock, which only a checkpoint takes for long.
BUSY_TIMEOUT_MS = 5_000
PAGE_CACHE_KIB = 4_096
# Of the write-ahead log between two checkpoints, 16 MB. A page that fills over several transactions is then copied into
# the file once: with SQLite's own 1,000 a message costs 3 us of CPU more.
CHECKPOINT_PAGES = 4_000

Durability = Literal["process", "power_loss"]

# `frames.head` is the frame without its tensors: the provenance of its trajectories, kept when the payload is gone.
# `frames.digest`: see `hash_chain.frame_digest`.
# `trajectories` grows by one narrow row a trajectory, so that counting a million of them takes about a second.
# `state` is one of `state.RowState`; SQLite's own check of it took a third of the time of writing a row.
# `uses` holds one row a gradient use, for ever: a restore reads from it what the restored parameters were trained on.
# `ordinal` counts the same trajectory's earlier ones, so that the few used again are found by index.
# `outcomes` is pruned, and an entry covers `num_rows` rows from `seq` on.
# `batches` distinguishes a repeated commit from a late one. Of a sampled one it holds the units, `num_samples` of them,
# until their uses are folded into `folded_uses` (see `replay.accounting`): `folded` says into which part. `budget`: the
# max_lag that it was leased under (see `budgets`). Each arrival of a closed lineage asks for its newest step, by index.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE lineages (
    position INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    parent TEXT,
    fork_step INTEGER NOT NULL,
    learner_id TEXT NOT NULL,
    opened_at_s REAL NOT NULL
);
CREATE TABLE frames (
    frame_id INTEGER PRIMARY KEY,
    segment INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    size INTEGER NOT NULL,
    received_at_s REAL NOT NULL,
    head BLOB NOT NULL,
    digest BLOB NOT NULL
);
CREATE TABLE trajectories (
    seq INTEGER PRIMARY KEY,
    trajectory_id TEXT NOT NULL UNIQUE,
    group_id TEXT NOT NULL,
    group_size INTEGER NOT NULL,
    curriculum_bin TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    reward REAL,
    num_steps INTEGER NOT NULL,
    length_tokens INTEGER NOT NULL,
    num_episodes INTEGER NOT NULL,
    mean_return REAL,
    spans BLOB,
    started_at_s REAL NOT NULL,
    finished_at_s REAL NOT NULL,
    accepted_at_s REAL NOT NULL,
    leased_at_s REAL,
    terminal_at_s REAL,
    frame_id INTEGER,
    frame_index INTEGER NOT NULL,
    batch_id TEXT,
    trained_lineage TEXT,
    trained_step INTEGER,
    lag INTEGER,
    span INTEGER,
    age_s REAL,
    num_revivals INTEGER NOT NULL
);
CREATE TABLE uses (
    seq INTEGER NOT NULL,
    lineage TEXT NOT NULL,
    step INTEGER NOT NULL,
    lag INTEGER NOT NULL,
    span INTEGER NOT NULL,
    age_s REAL NOT NULL,
    ordinal INTEGER NOT NULL,
    PRIMARY KEY (seq, lineage, step)
) WITHOUT ROWID;
CREATE TABLE batches (
    number INTEGER PRIMARY KEY,
    batch_id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL CHECK (state IN ('leased', 'committed', 'released')),
    lineage TEXT NOT NULL,
    step INTEGER NOT NULL,
    learner_id TEXT NOT NULL,
    leased_at_s REAL NOT NULL,
    num_samples INTEGER NOT NULL DEFAULT 0,
    max_lag INTEGER NOT NULL DEFAULT 0,
    folded INTEGER NOT NULL DEFAULT 0,
    units BLOB,
    budget INTEGER
);
CREATE TABLE folded_uses (
    seq INTEGER NOT NULL,
    lineage TEXT NOT NULL,
    part INTEGER NOT NULL,
    total INTEGER NOT NULL,
    counts BLOB,
    PRIMARY KEY (seq, lineage, part)
);
CREATE TABLE outcomes (
    cursor INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL,
    num_rows INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    trained_lineage TEXT,
    trained_step INTEGER
);
"""

# By name. A ledger that an earlier version of the program made gets those that it lacks.
_INDEXES = (
    "trajectories_by_update ON trajectories (trained_lineage, trained_step) WHERE trained_step IS NOT NULL",
    "trajectories_revived ON trajectories (seq) WHERE num_revivals > 0",
    "trajectories_superseded ON trajectories (seq) WHERE reason = 'superseded'",
    "uses_again ON uses (seq) WHERE ordinal > 0",
    "batches_with_units ON batches (lineage, step) WHERE units IS NOT NULL",
    "batches_by_update ON batches (lineage, step)",
    "batches_leased ON batches (number) WHERE state = 'leased'",
    "batches_with_lags ON batches (max_lag) WHERE max_lag > 0",
    "folded_uses_in_force ON folded_uses (seq) WHERE counts IS NOT NULL",
)


@contextmanager
def open_for_writing(path: Path, *, run_id: str, durability: Durability) -> Generator[sqlite3.Connection]:
    """Open or create the ledger of one run, closed again only when the block fails, which reads what memory needs.

    Transactions are explicit (see ``transaction``).

    ``synchronous=NORMAL`` in WAL mode loses no committed transaction to ``kill -9``; a power cut may take the last
    ones, which ``FULL`` prevents with one flush a transaction.

    Raises:
        StaleFolderError: the file belongs to another run, or to another version of the schema.
        CorruptionError: the file is no SQLite database, or a page of it is damaged.
        UnavailableError: the disk is full or does not answer, or another process holds the file.
    """
    with ExitStack() as opened:
        try:
            connection = sqlite3.connect(path, isolation_level=None)
            opened.callback(connection.close)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power_loss' else 'NORMAL'}")
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute("PRAGMA temp_store = MEMORY")
            hash_chain.begin(connection)
            _create_or_check(connection, path, run_id=run_id)
            yield connection  # a damaged page is found when it is read
        except sqlite3.DatabaseError as error:
            raise _not_opened(path, error) from error
        opened.pop_all()


def _create_or_check(connection: sqlite3.Connection, path: Path, *, run_id: str) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        with transaction(connection):
            tables = (*_TABLES.split(";"), CHAIN_TABLE, *FOLDED_TABLES.split(";"), budgets.BUDGETS_TABLE)
            for statement in tables:
                connection.execute(statement)
            _create_indexes(connection)
            connection.execute("INSERT INTO meta VALUES ('run_id', ?)", (run_id,))
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        return
    _check_version(version, path)
    (owner,) = connection.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()
    if owner != run_id:
        raise StaleFolderError(
            f"The ledger {path} belongs to run {owner!r}, not to {run_id!r}",
            why="trajectories of two runs must not be counted together",
            fix="use the folder of this run, or choose a new one with `--dir`",
        )
    with transaction(connection):
        budgets.add_missing(connection)
        _create_indexes(connection)
        counted_rows.forget_if_changed(connection)


def _create_indexes(connection: sqlite3.Connection) -> None:
    for index in _INDEXES:
        connection.execute(f"CREATE INDEX IF NOT EXISTS {index}")


def _check_version(version: int, path: Path) -> None:
    if version != SCHEMA_VERSION:
        raise StaleFolderError(
            f"The ledger {path} has schema version {version}, this program reads version {SCHEMA_VERSION}",
            fix="finish the run with the version of Tidegate that began it, or start a new run",
        )


def _not_opened(path: Path, error: sqlite3.DatabaseError) -> TidegateError:
    """Why a ledger could not be opened."""
    if is_passing(error):
        return UnavailableError(
            f"The ledger {path} cannot be opened",
            why=str(error),
            fix="free space on its disk, and close other programs that have it open; nothing was lost",
        )
    return _unreadable(path, error)


def _unreadable(path: Path, error: sqlite3.DatabaseError) -> CorruptionError:
    return CorruptionError(
        f"The ledger {path} cannot be read",
        why=str(error),
        fix="restore the file from a copy, or start a new run in another folder",
    )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[sqlite3.Connection, None, None]:
    """All of it or nothing: committed at the end with its entry of the hash chain, rolled back when anything is raised.

    Raises:
        UnavailableError: the disk is full or does not answer; the same call may succeed later.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        hash_chain.seal(connection)
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError):
            raise UnavailableError(
                "The ledger cannot be written", why=str(error), fix="free space on the disk; nothing was lost"
            ) from error
        raise


@contextmanager
def durable_transaction(connection: sqlite3.Connection) -> Generator[sqlite3.Connection, None, None]:
    """A transaction that a power cut leaves as well, with all before it. It costs one flush of the disk.

    For a lineage: the learner's durable checkpoints name it, and a ledger that lost it would refuse them.

    Raises:
        UnavailableError: as ``transaction``.
    """
    (before,) = connection.execute("PRAGMA synchronous").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    try:
        with transaction(connection):
            yield connection
    finally:
        connection.execute(f"PRAGMA synchronous = {before}")


@contextmanager
def reading(path: Path) -> Generator[sqlite3.Connection, None, None]:
    """A read-only connection to the ledger of a live or stopped run; it never blocks the writer.

    Raises:
        NotFoundError: there is no such file.
        StaleFolderError: another version of the schema wrote it.
        CorruptionError: the file is no SQLite database, or a page of it is damaged.
        UnavailableError: the disk does not answer, or another process holds the file.
        ConfigError: its folder cannot be written, and its run was killed or goes on.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no ledger at {path}", fix="name the folder of a run that was started")
    with ExitStack() as opened:
        try:
            connection = connect_read_only(path, timeout_s=BUSY_TIMEOUT_MS / 1000)
            opened.callback(connection.close)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            _check_version(version, path)
            # One snapshot for everything that is read, however long the reader takes.
            connection.execute("BEGIN")
            yield connection  # a damaged page is found when it is read
        except sqlite3.DatabaseError as error:
            raise _not_opened(path, error) from error
