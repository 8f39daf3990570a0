"""Which errors of SQLite say nothing about a file's content."""

import sqlite3
from typing import Final

_PASSING: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


def is_passing(error: Exception) -> bool:
    """Whether the disk, its permissions or another process' lock refused: the file may be sound."""
    # An extended code has the reason above its lowest byte. Errors that the module itself raises have none.
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING
