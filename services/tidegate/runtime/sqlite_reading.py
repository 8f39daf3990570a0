"""A run's databases for reading, also in a folder that cannot be written: a read-only disk, another user's run."""

import sqlite3
from pathlib import Path

from tidegate.core.errors import ConfigError

# What SQLite answers where it cannot write the index of the write-ahead log, which readers need as well.
_FOLDER_IS_CLOSED = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


def connect_read_only(path: Path, *, timeout_s: float) -> sqlite3.Connection:
    """A connection that has seen the file, and blocks no writer.

    Raises:
        ConfigError: the folder cannot be written, and its writer left changes in the write-ahead log.
        sqlite3.DatabaseError: the file is no database, or cannot be read at the moment.
    """
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        return _connect(uri, timeout_s=timeout_s)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _FOLDER_IS_CLOSED:
            raise
        log = path.with_name(f"{path.name}-wal")
        if not log.exists() or log.stat().st_size == 0:
            # Its writer closed it: the file holds everything and does not change.
            return _connect(f"{uri}&immutable=1", timeout_s=timeout_s)
        raise ConfigError(
            f"{path} cannot be read in a folder that cannot be written",
            why=f"its run was killed or goes on, and its last changes are in {log.name}: {error}",
            fix="copy the run folder to one that is yours, and name that",
        ) from error


def _connect(uri: str, *, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=timeout_s)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection
