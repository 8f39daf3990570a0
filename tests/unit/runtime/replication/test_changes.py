"""Rows that changed are noted in the transaction that changes them."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tidegate.core.ids import RunId
from tidegate.runtime.replication.changes import (
    KEY_COLUMNS_MAX,
    all_rows,
    changed_rows,
    epoch_of,
    forget_changes,
    forget_replica,
    newest_change,
    track,
)
from tidegate.runtime.replication.tables import Table, read_tables
from tidegate.task_queue.journal import open_journal
from tidegate.trajectory_store.ledger import Ledger

Rows = dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]
SCHEMA = (
    "CREATE TABLE plain (id INTEGER PRIMARY KEY, text TEXT)",
    "CREATE TABLE named (name TEXT PRIMARY KEY, value REAL) WITHOUT ROWID",
    "CREATE TABLE wide (a INTEGER, b TEXT, c INTEGER, data BLOB, PRIMARY KEY (a, b, c))",
)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(tracked()) as connection:
        yield connection


def tracked() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in SCHEMA:
        connection.execute(statement)
    track(connection, read_tables(connection), epoch=7)
    return connection


def rows_of(db: sqlite3.Connection) -> Rows:
    found: Rows = {}
    for changed in all_rows(db, read_tables(db)):
        apply(found, changed.table, changed.rows, ())
    return found


def apply(replica: Rows, table: Table, rows: Any, gone: Any) -> None:
    places = [table.columns.index(column) for column in table.key]
    there = replica.setdefault(table.name, {})
    there.update({tuple(row[place] for place in places): row for row in rows})
    for key in gone:
        there.pop(tuple(key), None)


def pushed(replica: Rows, db: sqlite3.Connection, *, after: int) -> int:
    """What a push does; returns what it may go on after."""
    for changed in changed_rows(db, read_tables(db), after=after):
        apply(replica, changed.table, changed.rows, changed.gone)
    return newest_change(db)


def without_empty(rows: Rows) -> Rows:
    return {name: there for name, there in rows.items() if there}


STATEMENTS = st.sampled_from(
    [
        "INSERT OR REPLACE INTO plain VALUES (1, 'x')",
        "INSERT INTO plain (text) VALUES ('more')",
        "UPDATE plain SET text = text || '!' WHERE id <= 2",
        "DELETE FROM plain WHERE id = 1",
        "INSERT INTO named VALUES ('n', 0.5) ON CONFLICT DO UPDATE SET value = value + 1",
        "DELETE FROM named",
        "INSERT OR IGNORE INTO wide VALUES (1, 'b', 2, x'00'), (1, 'b', 3, NULL)",
        "UPDATE wide SET data = x'ff' WHERE c = 3",
        "DELETE FROM wide WHERE a = 1 AND c = 2",
        "push",
        "forget",
    ]
)


@given(st.lists(STATEMENTS, max_size=25))
def test_replica_that_follows_the_notes_has_the_rows_of_the_file(statements: list[str]) -> None:
    with closing(tracked()) as db:
        replica: Rows = {}
        after = 0
        for statement in statements:
            if statement == "push":
                after = pushed(replica, db, after=after)
            elif statement == "forget":
                forget_changes(db, through=after, most=3)
            else:
                db.execute(statement)
        pushed(replica, db, after=after)
        assert without_empty(replica) == without_empty(rows_of(db))


def test_row_that_changed_often_is_pushed_once(db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO plain VALUES (1, 'a')")
    for _ in range(5):
        db.execute("UPDATE plain SET text = text || 'b'")
    (changed,) = changed_rows(db, read_tables(db), after=0)
    assert list(changed.rows) == [(1, "abbbbb")]
    assert list(changed.gone) == []


def test_transaction_that_is_rolled_back_leaves_no_notes(db: sqlite3.Connection) -> None:
    db.execute("BEGIN")
    db.execute("INSERT INTO plain VALUES (1, 'a')")
    db.execute("ROLLBACK")
    assert newest_change(db) == 0
    assert list(changed_rows(db, read_tables(db), after=0)) == []


def test_places_go_on_after_pushed_notes_were_removed(db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO plain (text) VALUES ('a'), ('b'), ('c')")
    newest = newest_change(db)
    forget_changes(db, through=newest, most=100)
    assert newest_change(db) == newest
    db.execute("INSERT INTO plain (text) VALUES ('d')")
    (changed,) = changed_rows(db, read_tables(db), after=newest)
    assert [row[1] for row in changed.rows] == ["d"]


def test_notes_of_a_process_that_was_killed_are_there_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in SCHEMA:
            db.execute(statement)
        track(db, read_tables(db), epoch=1)
        db.execute("INSERT INTO plain VALUES (1, 'a')")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        track(db, read_tables(db), epoch=2)
        assert epoch_of(db) == 2
        (changed,) = changed_rows(db, read_tables(db), after=0)
        assert list(changed.rows) == [(1, "a")]


def test_file_that_goes_on_without_its_replica_has_no_notes_and_no_epoch(db: sqlite3.Connection) -> None:
    forget_replica(db)
    assert epoch_of(db) is None
    assert [table.name for table in read_tables(db)] == ["named", "plain", "wide"]


def test_every_table_of_ledger_and_journal_can_be_replicated(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "ledger", run_id="run-1").close()
    open_journal(tmp_path / "journal", run_id=RunId("run-1")).close()
    names: list[str] = []
    for file in ("ledger", "journal"):
        with closing(sqlite3.connect(tmp_path / file, isolation_level=None)) as db:
            tables = read_tables(db)
            track(db, tables, epoch=1)
            assert all(1 <= len(table.key) <= KEY_COLUMNS_MAX for table in tables)
            names += [table.name for table in tables]
    assert {"trajectories", "uses", "chain", "outcomes", "tasks", "packed"} <= set(names)
