"""The tables of a SQLite file, as PostgreSQL has them."""

import sqlite3
from collections.abc import Sequence

import msgspec

_TYPES = {"INTEGER": "bigint", "REAL": "double precision", "TEXT": "text", "BLOB": "bytea"}
# Beside the service's own tables: what was changed, and who owns the replica.
CHANGED_ROWS, OWNER = "replica_changed_rows", "replica_owner"
_OWN_TABLES = (CHANGED_ROWS, OWNER)


class Table(msgspec.Struct, frozen=True):
    """``types``: of PostgreSQL, by column. ``key``: the columns of the primary key."""

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def key_types(self) -> tuple[str, ...]:
        """Types of the key's columns."""
        return tuple(self.types[self.columns.index(name)] for name in self.key)


def read_tables(db: sqlite3.Connection) -> list[Table]:
    """The tables that a service made in its file, in the order of their names."""
    names = db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    ).fetchall()
    return [_table(db, name) for (name,) in names if name not in _OWN_TABLES]


def _table(db: sqlite3.Connection, name: str) -> Table:
    found: Sequence[tuple[int, str, str, int, object, int]] = db.execute(
        f"PRAGMA table_info({name})"
    ).fetchall()
    key = sorted((place, column) for _, column, _, _, _, place in found if place)
    assert key, f"{name} has no primary key, by which its rows are replicated"
    return Table(
        name=name,
        columns=tuple(column for _, column, *_ in found),
        types=tuple(_TYPES[declared] for _, _, declared, *_ in found),
        key=tuple(column for _, column in key),
    )
