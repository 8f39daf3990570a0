"""Which rows of a SQLite file changed, noted by triggers in the transaction that changes them.

The triggers are those of one connection. The notes are rows of the file: a process that is killed leaves those that
were not pushed to the next one.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from tidegate.runtime.replication.tables import CHANGED_ROWS, OWNER, Table

# The widest key; each column of it is noted in one of its own.
KEY_COLUMNS_MAX = 3
_KEYS = ", ".join(f"key_{place}" for place in range(KEY_COLUMNS_MAX))
# Rows in memory at once.
ROWS_AT_ONCE = 5_000


class ChangedRows(msgspec.Struct, frozen=True, eq=False):
    """Rows of one table: those that are there, whole, and the keys of those that are gone."""

    table: Table
    rows: Sequence[tuple[Any, ...]]
    gone: Sequence[tuple[Any, ...]]


def track(db: sqlite3.Connection, tables: Sequence[Table], *, epoch: int) -> None:
    """Note what this connection changes from now on, in a file that ``epoch`` of its replica belongs to.

    Raises:
        sqlite3.OperationalError: the disk is full or does not answer.
    """
    db.execute(
        f"CREATE TABLE IF NOT EXISTS {CHANGED_ROWS} (place INTEGER PRIMARY KEY, name TEXT NOT NULL, {_KEYS})"
    )
    set_epoch(db, epoch)
    for table in tables:
        assert len(table.key) <= KEY_COLUMNS_MAX, f"{table.name} has a key of {len(table.key)} columns"
        for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            keys = [f"{row}.{column}" for column in table.key]
            keys += ["NULL"] * (KEY_COLUMNS_MAX - len(keys))
            db.execute(
                f"CREATE TEMP TRIGGER IF NOT EXISTS replica_{table.name}_{event} AFTER {event} ON main.{table.name}"
                f" BEGIN INSERT INTO {CHANGED_ROWS} (name, {_KEYS}) VALUES ('{table.name}', {', '.join(keys)}); END"
            )


def all_rows(db: sqlite3.Connection, tables: Sequence[Table]) -> Iterator[ChangedRows]:
    """Every row, as it is in the read transaction of ``db``, in portions."""
    for table in tables:
        found = db.execute(
            f"SELECT {', '.join(f't.{column}' for column in table.columns)} FROM {table.name} t"
        )
        while portion := list(islice(found, ROWS_AT_ONCE)):
            yield ChangedRows(table, rows=portion, gone=())


def forget_replica(db: sqlite3.Connection) -> None:
    """Remove the tables of this package from a file that is used without its replica, or in another place."""
    for name in (CHANGED_ROWS, OWNER):
        db.execute(f"DROP TABLE IF EXISTS {name}")


def epoch_of(db: sqlite3.Connection) -> int | None:
    """The epoch of its replica that a file belongs to; None for a file that was never replicated."""
    if not _has_table(db, OWNER):
        return None
    found = db.execute(f"SELECT epoch FROM {OWNER}").fetchone()
    return None if found is None else int(found[0])


def set_epoch(db: sqlite3.Connection, epoch: int) -> None:
    """Say which epoch of its replica a file belongs to."""
    db.execute(
        f"CREATE TABLE IF NOT EXISTS {OWNER} (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), epoch INTEGER)"
    )
    db.execute(f"INSERT OR REPLACE INTO {OWNER} VALUES (1, ?)", (epoch,))


def forgotten_through(db: sqlite3.Connection) -> int:
    """The place of the last note that was removed (``forget_changes``); 0 if none was."""
    if not _has_table(db, CHANGED_ROWS):
        return 0
    oldest = db.execute(f"SELECT min(place) FROM {CHANGED_ROWS}").fetchone()[0]
    return 0 if oldest is None else oldest - 1


def _has_table(db: sqlite3.Connection, name: str) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def newest_change(db: sqlite3.Connection) -> int:
    """The place of the newest note; 0 without any."""
    return db.execute(f"SELECT max(place) FROM {CHANGED_ROWS}").fetchone()[0] or 0


def forget_changes(db: sqlite3.Connection, *, through: int, most: int) -> int:
    """Remove at most ``most`` notes up to a place, but never the newest, after which places go on; how many it was.

    Raises:
        sqlite3.OperationalError: the disk is full or does not answer.
    """
    return db.execute(
        f"DELETE FROM {CHANGED_ROWS} WHERE place IN (SELECT place FROM {CHANGED_ROWS} WHERE place <= ?"
        f" AND place < (SELECT max(place) FROM {CHANGED_ROWS}) ORDER BY place LIMIT ?)",
        (through, most),
    ).rowcount


def changed_rows(db: sqlite3.Connection, tables: Sequence[Table], *, after: int) -> Iterator[ChangedRows]:
    """What was noted after a place, as it is in the read transaction of ``db``: each row once, in portions."""
    by_name = {table.name: table for table in tables}
    names = db.execute(f"SELECT DISTINCT name FROM {CHANGED_ROWS} WHERE place > ?", (after,)).fetchall()
    for (name,) in names:
        table = by_name[name]
        width = len(table.key)
        noted = ", ".join(f"key_{place}" for place in range(width))
        match = " AND ".join(f"t.{column} = c.key_{place}" for place, column in enumerate(table.key))
        found = db.execute(
            f"SELECT c.*, {', '.join(f't.{column}' for column in table.columns)}"
            f" FROM (SELECT DISTINCT {noted} FROM {CHANGED_ROWS} WHERE place > ? AND name = ?) c"
            f" LEFT JOIN {name} t ON {match}",
            (after, name),
        )
        # A key is never NULL in a row that is there.
        key_at = width + table.columns.index(table.key[0])
        while portion := list(islice(found, ROWS_AT_ONCE)):
            yield ChangedRows(
                table,
                rows=[row[width:] for row in portion if row[key_at] is not None],
                gone=[row[:width] for row in portion if row[key_at] is None],
            )
