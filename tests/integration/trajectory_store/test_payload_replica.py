"""Payloads in a real PostgreSQL: those of the segments on disk, whatever became of a transaction."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import find_programs, running_server
from tidegate.trajectory_store.payload_replica import PayloadReplica
from tidegate.trajectory_store.segments import segment_path

pytestmark = pytest.mark.skipif(
    find_programs() is None, reason="there is no PostgreSQL here (Debian: postgresql)"
)
SCHEMA = "payloads_of_a_test"


@pytest.fixture
def db() -> Iterator[psycopg.Connection]:
    with running_server() as server, psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        yield connection


def segments_of(db: psycopg.Connection) -> list[int]:
    rows = db.execute(f"SELECT DISTINCT segment FROM {SCHEMA}.payloads ORDER BY segment".encode())
    return [segment for (segment,) in rows.fetchall()]


def test_payloads_whose_removal_was_rolled_back_are_removed_with_the_next_segment(
    db: psycopg.Connection, tmp_path: Path
) -> None:
    payloads = PayloadReplica(tmp_path, replay=tmp_path / "replay")
    payloads.create(db, SCHEMA)
    for segment in (1, 2):
        segment_path(tmp_path, segment).write_bytes(b"frame")
        db.execute(f"INSERT INTO {SCHEMA}.payloads VALUES (%s, 0, 'frame')".encode(), (segment,))
    payloads.finish(db, SCHEMA)
    assert segments_of(db) == [1, 2]
    segment_path(tmp_path, 1).unlink()
    with db.transaction():
        payloads.finish(db, SCHEMA)
        raise psycopg.Rollback
    assert segments_of(db) == [1, 2]
    segment_path(tmp_path, 3).write_bytes(b"frame")
    payloads.finish(db, SCHEMA)
    assert segments_of(db) == [2]
