"""Replicas through PgBouncer, which gives each transaction another session of the server."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.runtime.replication.test_replica import SILENT_S, Service, items
from tests.support.pgbouncer import find_pgbouncer, pooled
from tests.support.postgres import PostgresServer, find_programs, running_server
from tidegate.core.errors import ConflictError
from tidegate.runtime.replication import opening, ownership, replica
from tidegate.runtime.replication.database import ReplicaDatabase, schema_name

pytestmark = pytest.mark.skipif(
    find_programs() is None or find_pgbouncer() is None,
    reason="there is no PostgreSQL or no PgBouncer here (Debian: postgresql, pgbouncer)",
)
# What its users set where it refuses what a client asks of its session.
FORGETS = "options"
# Above psycopg's, from which on it prepares a statement in its session.
NUM_PUSHES = 12


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as found:
        yield found


@pytest.fixture(
    params=[("session", ""), ("transaction", ""), ("transaction", FORGETS)],
    ids=["sessions", "transactions", "transactions of a pooler that forgets"],
)
def uri(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[str]:
    mode, ignored = request.param
    # Several sessions, or every transaction would find what the one before has left.
    with pooled(server, mode=mode, pool_size=3, ignored=ignored) as found:
        yield found


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "SILENT_S", SILENT_S)
    monkeypatch.setattr(opening, "RETRY_S", 0.1)
    monkeypatch.setattr(replica, "PERIOD_S", 0.2)


async def test_what_two_services_push_in_turns_is_there_after_their_folders_are_lost(
    tmp_path: Path, uri: str, request: pytest.FixtureRequest
) -> None:
    names = [f"{request.node.name} {side}" for side in ("a", "b")]

    def service(name: str, folder: str) -> Service:
        return Service(tmp_path / folder, uri, run_id=name)

    first, second = (service(name, f"{index}-before") for index, name in enumerate(names))
    async with first.started() as (db, found), second.started() as (other_db, other):
        for number in range(NUM_PUSHES):
            db.execute("INSERT INTO items VALUES (?, 'a', 0.5, x'00ff')", (number,))
            await found.caught_up()
            other_db.execute("INSERT INTO items VALUES (?, 'b', 0.5, x'00ff')", (number,))
            await other.caught_up()
    for index, (name, text) in enumerate(zip(names, "ab", strict=True)):
        async with service(name, f"{index}-after").started() as (db, _):
            assert items(db) == [(number, text, 0.5, b"\x00\xff") for number in range(NUM_PUSHES)]


class SeenDeadlines:
    """Fulfils ``ReplicatedFiles``; notes the deadlines at the end of each transaction."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def create(self, db: Any, schema: str) -> None:
        pass

    def push(self, db: Any, schema: str, changed: object) -> None:
        pass

    def finish(self, db: Any, schema: str) -> None:
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        self.found.append(" ".join(db.execute(f"SHOW {name}").fetchone()[0] for name in names))

    def fill(self, db: Any, schema: str) -> None:
        pass


def test_statements_and_transactions_have_their_deadlines_in_every_session(
    uri: str, request: pytest.FixtureRequest
) -> None:
    seen = SeenDeadlines()
    for service in ("a", "b"):
        schema = schema_name(request.node.name, service)
        with closing(ReplicaDatabase(uri, schema=schema, files=seen)) as found:
            epoch = found.take(run_id=request.node.name, schema_version=1, seen=None, through=0)
            found.copy([], [], epoch=epoch, through=0)
            found.push([], epoch=epoch, after=0, through=0)
    assert seen.found == ["10s 10s 5s"] * 4


def test_owner_that_another_one_replaced_adds_nothing(uri: str, request: pytest.FixtureRequest) -> None:
    run_id = request.node.name
    first, second = (ReplicaDatabase(uri, schema=schema_name(run_id, "service")) for _ in range(2))
    with closing(first), closing(second):
        epoch = first.take(run_id=run_id, schema_version=1, seen=None, through=0)
        first.copy([], [], epoch=epoch, through=0)
        second.take(run_id=run_id, schema_version=1, seen=second.read(), through=0)
        with pytest.raises(ConflictError):
            first.push([], epoch=epoch, after=0, through=1)
