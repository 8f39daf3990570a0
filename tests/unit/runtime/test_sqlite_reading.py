import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError
from tidegate.runtime.sqlite_reading import connect_read_only


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Closed by its writer, in a folder where SQLite can make no index, as on a disk that is read-only."""
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE numbers AS SELECT 7 AS number")
        db.commit()
    (tmp_path / "ledger.sqlite-shm").symlink_to("nowhere")
    return path


def test_database_that_its_writer_closed_is_read_where_nothing_can_be_written(database: Path) -> None:
    with closing(connect_read_only(database, timeout_s=1.0)) as db:
        assert db.execute("SELECT number FROM numbers").fetchall() == [(7,)]


def test_database_whose_changes_cannot_be_read_is_not_taken_for_older_or_damaged(database: Path) -> None:
    database.with_name("ledger.sqlite-wal").write_bytes(b"changes")
    with pytest.raises(ConfigError, match="copy the run folder"):
        connect_read_only(database, timeout_s=1.0)
