"""A replica in a real PostgreSQL: what was answered is there, and one process owns it."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import structlog

from tests.support.postgres import PostgresServer, find_programs, running_server
from tidegate.core.errors import ConfigError, ConflictError, StaleFolderError, UnavailableError
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.drain import Drain
from tidegate.runtime.replication import database, heartbeat, opening, ownership, replica
from tidegate.runtime.replication.changes import ChangedRows, epoch_of
from tidegate.runtime.replication.database import ReplicaDatabase, schema_name
from tidegate.runtime.replication.opening import Kind, Taken, await_turn, follow, take
from tidegate.runtime.replication.replica import Replica
from tidegate.runtime.stats_board import StatsBoard

pytestmark = pytest.mark.skipif(
    find_programs() is None, reason="there is no PostgreSQL here (Debian: postgresql)"
)

VERSION = 1
SILENT_S = 1.0
LOG = structlog.get_logger()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as found:
        yield found


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "SILENT_S", SILENT_S)
    monkeypatch.setattr(opening, "RETRY_S", 0.1)
    monkeypatch.setattr(replica, "PERIOD_S", 0.2)


def create(path: Path, *, columns: str = "id INTEGER PRIMARY KEY, text TEXT, value REAL, data BLOB") -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"CREATE TABLE IF NOT EXISTS items ({columns})")
    db.execute("CREATE TABLE IF NOT EXISTS pairs (a TEXT, b INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID")
    db.close()


class Service:
    """A service with a replicated file."""

    def __init__(self, folder: Path, server: PostgresServer | str, *, run_id: str) -> None:
        """``server``: or the address that leads to it."""
        uri = server if isinstance(server, str) else server.uri
        folder.mkdir(exist_ok=True)
        self.kind = Kind(run_id, VERSION, folder / "file.sqlite", create)
        self.database = ReplicaDatabase(uri, schema=schema_name(run_id, "service"))
        self.stats = StatsBoard(service="trajectory_store", instance="s", started_at_s=0.0)

    @asynccontextmanager
    async def started(self, taken: Taken | None = None) -> AsyncGenerator[tuple[sqlite3.Connection, Replica]]:
        clock = SystemClock()
        taken = taken or await take(self.kind, self.database, clock=clock, log=LOG)
        create(self.kind.path)
        writer = sqlite3.connect(self.kind.path, isolation_level=None)
        try:
            found = await follow(
                writer, taken, self.kind, self.database, clock=clock, stats=self.stats, log=LOG
            )
            try:
                yield writer, found
            finally:
                await found.close()
        finally:
            writer.close()


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> str:
    return request.node.name


def items(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return db.execute("SELECT * FROM items ORDER BY id").fetchall()


def rows_in(server: PostgresServer, run_id: str, what: str = "items") -> list[tuple[Any, ...]]:
    with psycopg.connect(server.uri) as db:
        return db.execute(
            f"SELECT * FROM {schema_name(run_id, 'service')}.{what} ORDER BY 1".encode()
        ).fetchall()


async def test_what_was_caught_up_is_there_after_the_folder_is_lost(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    values = [
        (1, "a", 0.5, b"\x00\xff"),
        (2, "nul \0 and \ue000", None, None),
        (3, "", float("inf"), b""),
        (2**62, "é", -0.1, b"x" * 100_000),
    ]
    async with Service(tmp_path / "a", server, run_id=run_id).started() as (db, found):
        db.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", values)
        db.execute("INSERT INTO pairs VALUES ('p', 1), ('p', 2)")
        await found.caught_up()
        db.execute("DELETE FROM pairs WHERE b = 1")
        db.execute("UPDATE items SET text = 'changed' WHERE id = 3")
        await found.caught_up()
        db.execute("INSERT INTO items VALUES (4, 'never sent', 0.0, x'')")
    async with Service(tmp_path / "b", server, run_id=run_id).started() as (db, _):
        there = items(db)
        assert db.execute("SELECT * FROM pairs").fetchall() == [("p", 2)]
    values[2] = (3, "changed", float("inf"), b"")
    assert there == values


async def test_file_that_is_ahead_is_pushed_at_the_next_start(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    async with Service(tmp_path / "a", server, run_id=run_id).started() as (db, _):
        db.execute("INSERT INTO items VALUES (1, 'not pushed', 0.0, x'')")
    assert rows_in(server, run_id) == []
    async with Service(tmp_path / "a", server, run_id=run_id).started() as (db, _):
        assert rows_in(server, run_id) == [(1, "not pushed", 0.0, b"")] == items(db)
        assert epoch_of(db) == 2


async def test_run_that_has_a_past_is_copied_whole(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    service = Service(tmp_path / "a", server, run_id=run_id)
    create(service.kind.path)
    with sqlite3.connect(service.kind.path) as db:
        db.executemany("INSERT INTO items VALUES (?, 'old', 1.0, NULL)", [(n,) for n in range(12_000)])
    async with service.started():
        assert len(rows_in(server, run_id)) == 12_000


async def test_owner_that_was_taken_for_dead_answers_nothing_any_more(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    async with Service(tmp_path / "a", server, run_id=run_id).started() as (old, replaced):
        await asyncio.sleep(SILENT_S)
        async with Service(tmp_path / "b", server, run_id=run_id).started() as (new, owner):
            new.execute("INSERT INTO items VALUES (1, 'new', 0.0, NULL)")
            await owner.caught_up()
            with pytest.raises(ConflictError, match="took over"):
                await replaced.caught_up()  # with nothing to push: what it reads is out of date
            old.execute("INSERT INTO items VALUES (1, 'old', 0.0, NULL)")
            with pytest.raises(ConflictError, match="took over"):
                await replaced.caught_up()
            with pytest.raises(ConflictError, match="took over"):
                await replaced.run(Drain())
        assert [row[1] for row in rows_in(server, run_id)] == ["new"]
    # Its folder is of an earlier owner now.
    async with Service(tmp_path / "a", server, run_id=run_id).started() as (db, _):
        assert [row[1] for row in items(db)] == ["new"]


async def test_owner_that_is_lost_in_the_middle_of_a_transaction_is_followed(
    tmp_path: Path, server: PostgresServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with its node: it closes no connection, and holds the row by which the next one would take the replica."""
    monkeypatch.setattr(database, "IDLE_IN_TRANSACTION_MS", 500)
    lost = Service(tmp_path / "a", server, run_id=run_id)
    is_lost, ends = threading.Event(), threading.Event()

    def rows_of_which_none_comes() -> Iterator[ChangedRows]:
        is_lost.set()
        ends.wait(60.0)
        yield from ()

    async with lost.started() as (db, owner):
        db.execute("INSERT INTO items VALUES (1, 'sent', 0.0, NULL)")
        await owner.caught_up()
        push = partial(lost.database.push, epoch=1, after=0, through=100)
        pushing = asyncio.create_task(asyncio.to_thread(push, rows_of_which_none_comes()))
        await asyncio.to_thread(is_lost.wait)
        try:
            async with Service(tmp_path / "b", server, run_id=run_id).started() as (new, _):
                assert [row[1] for row in items(new)] == ["sent"]
        finally:
            ends.set()
        with pytest.raises(UnavailableError, match="nothing was lost"):
            await pushing


async def test_second_process_waits_for_an_owner_that_goes_on_and_gives_up(
    tmp_path: Path, server: PostgresServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "START_WAIT_S", 2 * SILENT_S)
    drain = Drain()
    async with Service(tmp_path / "a", server, run_id=run_id).started() as (db, owner):
        goes_on = asyncio.create_task(owner.run(drain))
        with pytest.raises(ConflictError, match="heard of again and again"):
            async with Service(tmp_path / "b", server, run_id=run_id).started():
                pass
        db.execute("INSERT INTO items VALUES (1, 'a', 0.0, NULL)")
        await owner.caught_up()
        drain.request()
        await goes_on


async def test_answers_wait_for_a_server_that_is_away_and_nothing_is_lost(
    tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server() as server:
        async with Service(tmp_path / "a", server, run_id=run_id).started() as (db, found):
            server.kill()
            db.execute("INSERT INTO items VALUES (1, 'a', 0.0, NULL)")
            with pytest.raises(UnavailableError, match="PostgreSQL"):
                await found.caught_up()
            assert found.is_away
            server.start()
            waiting = [asyncio.create_task(eventually(found)) for _ in range(3)]
            await asyncio.gather(*waiting)
            assert not found.is_away
            assert len(rows_in(server, run_id)) == 1
            monkeypatch.setattr(replica, "ANSWER_DEADLINE_S", 0.2)
            server.pause()
            db.execute("INSERT INTO items VALUES (2, 'b', 0.0, NULL)")
            with pytest.raises(UnavailableError, match="not up to date"):
                await found.caught_up()
            server.go_on()
            await eventually(found)
            assert len(rows_in(server, run_id)) == 2


async def eventually(found: Replica) -> None:
    while True:
        try:
            return await found.caught_up()
        except UnavailableError:
            await asyncio.sleep(0.05)


async def test_server_that_hangs_is_given_up_although_it_closes_no_connection(
    tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.runtime.replication.database.SILENT_S", 0.5)
    monkeypatch.setattr(replica, "LOOK_S", 0.1)
    with running_server() as server:
        async with Service(tmp_path / "a", server, run_id=run_id).started() as (db, found):
            server.pause()
            db.execute("INSERT INTO items VALUES (1, 'a', 0.0, NULL)")
            with pytest.raises(UnavailableError, match="PostgreSQL"):
                await found.caught_up()
            server.go_on()
            await eventually(found)
            assert len(rows_in(server, run_id)) == 1


async def test_file_with_more_columns_than_its_replica_is_copied_again(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    service = Service(tmp_path / "a", server, run_id=run_id)
    async with service.started() as (db, found):
        db.execute("INSERT INTO items VALUES (1, 'a', 0.0, NULL)")
        await found.caught_up()
    with sqlite3.connect(service.kind.path) as db:
        db.execute("ALTER TABLE items ADD COLUMN more INTEGER")
        db.execute("UPDATE items SET more = 5")
    async with Service(tmp_path / "a", server, run_id=run_id).started():
        assert rows_in(server, run_id) == [(1, "a", 0.0, None, 5)]


async def test_folder_that_was_restored_from_a_backup_is_not_overwritten(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    async with Service(tmp_path / "a", server, run_id=run_id).started():
        pass
    restored = Service(tmp_path / "b", server, run_id=run_id)
    create(restored.kind.path)
    with pytest.raises(StaleFolderError, match="DROP SCHEMA"):
        async with restored.started():
            pass


@pytest.mark.parametrize("restarts", [False, True])
async def test_rows_that_a_promoted_standby_lacks_are_copied_to_it_again(
    tmp_path: Path, run_id: str, restarts: bool
) -> None:
    with running_server() as primary, running_server(follows=primary) as standby:
        primary.await_standby(synchronous=False)
        service = Service(tmp_path / "a", primary, run_id="run")
        service.database = ReplicaDatabase(primary.uri_with(standby), schema=schema_name("run", "service"))
        async with service.started() as (db, found):
            standby.stop_following()
            db.execute("INSERT INTO items VALUES (1, 'acknowledged', 0.0, NULL)")
            await found.caught_up()
            db.execute("INSERT INTO items VALUES (2, 'acknowledged as well', 0.0, NULL)")
            drain = Drain()
            goes_on = asyncio.create_task(found.run(drain))
            while db.execute("SELECT count(*) FROM replica_changed_rows").fetchone() != (1,):
                await asyncio.sleep(0.05)
            drain.request()
            await goes_on
            primary.kill()
            standby.promote()
            assert rows_in(standby, "run") == []
            if not restarts:
                db.execute("INSERT INTO items VALUES (3, 'new', 0.0, NULL)")
                await caught_up(found)
                assert rows_in(standby, "run") == items(db)
        if restarts:
            async with service.started() as (db, _):
                assert rows_in(standby, "run") == items(db) != []
        # Its folder is not needed any more.
        service.kind.path.unlink()
        async with service.started() as (db, _):
            assert [row[0] for row in items(db)] == ([1, 2] if restarts else [1, 2, 3])


async def caught_up(found: Replica) -> None:
    """Once PostgreSQL answers again: the first try finds that the connection is lost."""
    async with asyncio.timeout(60):
        while True:
            try:
                await found.caught_up()
            except UnavailableError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_user_without_rights_is_refused_with_what_to_grant(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    with psycopg.connect(server.uri, autocommit=True) as db:
        db.execute("CREATE ROLE reader LOGIN")
    service = Service(tmp_path / "a", server, run_id=run_id)
    service.database = ReplicaDatabase(
        server.uri.replace("tidegate@", "reader@"), schema=schema_name(run_id, "service")
    )
    with pytest.raises(ConfigError, match="grant the user CREATE"):
        async with service.started():
            pass


def test_schemas_are_readable_and_differ_for_runs_that_are_cut_to_one_name() -> None:
    names = [schema_name(f"rl-{'x' * 80}-{n}", "trajectory_store") for n in range(3)]
    assert len(set(names)) == 3
    assert all(len(name) <= 63 and name.startswith("tidegate_rl_xx") for name in names)
    assert schema_name("cartpole-1", "task_queue").startswith("tidegate_cartpole_1_task_queue_")


async def has_turn(service: Service, drain: Drain | None = None) -> None:
    await await_turn(service.kind, service.database, clock=SystemClock(), drain=drain or Drain(), log=LOG)


async def test_instance_that_stands_by_takes_over_once_the_owner_is_silent(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    async with Service(tmp_path / "a", server, run_id=run_id).started() as (db, owner):
        db.execute("INSERT INTO items VALUES (1, 'a', 0.0, NULL)")
        await owner.caught_up()
        drain = Drain()
        lives = asyncio.create_task(owner.run(drain))
        second = Service(tmp_path / "b", server, run_id=run_id)
        waiting = asyncio.create_task(has_turn(second))
        await asyncio.sleep(2 * SILENT_S)
        assert not waiting.done()
        lives.cancel()  # a process that was stopped
        await waiting
        with pytest.raises(ConflictError, match="took over"):
            await owner.run(drain)
        async with second.started() as (new, _):
            assert [row[1] for row in items(new)] == ["a"]


async def test_owner_whose_push_takes_long_is_not_considered_dead(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    """As where PostgreSQL is slow: its heartbeat is seen when the transaction ends, and so is the wait for its row."""
    first = Service(tmp_path / "a", server, run_id=run_id)

    def slow_rows() -> Iterator[ChangedRows]:
        time.sleep(2 * SILENT_S)
        yield from ()

    async with first.started() as (db, owner):
        db.execute("INSERT INTO items VALUES (1, 'a', 0.0, NULL)")
        await owner.caught_up()
        waiting = asyncio.create_task(has_turn(Service(tmp_path / "b", server, run_id=run_id)))
        push = partial(first.database.push, epoch=1, after=0, through=100)
        for _ in range(2):
            await asyncio.to_thread(push, slow_rows())
        await asyncio.sleep(SILENT_S / 2)
        assert not waiting.done()
        waiting.cancel()


async def test_owner_that_ends_is_followed_at_once(
    tmp_path: Path, server: PostgresServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "SILENT_S", 3600.0)
    second = Service(tmp_path / "b", server, run_id=run_id)
    async with Service(tmp_path / "a", server, run_id=run_id).started():
        waiting = asyncio.create_task(has_turn(second))
        await asyncio.sleep(0.5)
        assert not waiting.done()
    async with asyncio.timeout(60):
        await waiting
        async with second.started():
            pass


async def test_of_instances_that_start_together_one_begins_and_the_others_stand_by(
    tmp_path: Path, server: PostgresServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "SILENT_S", 3600.0)
    instances = [Service(tmp_path / name, server, run_id=run_id) for name in "abc"]
    drain = Drain()
    waiting = {asyncio.create_task(has_turn(each, drain)): each for each in instances}
    done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (first,) = done
    async with waiting[first].started() as (db, owner):
        db.execute("INSERT INTO items VALUES (1, 'a', 0.0, NULL)")
        await owner.caught_up()
        await asyncio.sleep(0.5)
        assert not any(each.done() for each in others)
        drain.request()
        await asyncio.gather(*others)


async def test_start_that_takes_long_is_not_considered_dead(
    tmp_path: Path, server: PostgresServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.1)
    async with Service(tmp_path / "a", server, run_id=run_id).started():
        pass
    filling = Service(tmp_path / "b", server, run_id=run_id)

    def slowly(path: Path) -> None:
        time.sleep(3 * SILENT_S)
        create(path)

    filling.kind = msgspec.structs.replace(filling.kind, create=slowly)
    first = asyncio.create_task(has_turn(filling))
    await asyncio.sleep(0.5)
    second = asyncio.create_task(has_turn(Service(tmp_path / "c", server, run_id=run_id)))
    done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
    assert done == {first}
    second.cancel()


async def test_first_copy_that_ends_while_another_instance_waits_for_it_stays(
    tmp_path: Path, server: PostgresServer, run_id: str
) -> None:
    first = Service(tmp_path / "a", server, run_id=run_id)
    create(first.kind.path)
    with sqlite3.connect(first.kind.path) as db:
        db.execute("INSERT INTO items VALUES (1, 'old', 1.0, NULL)")
    taken = await take(first.kind, first.database, clock=SystemClock(), log=LOG)
    late = ReplicaDatabase(server.uri, schema=schema_name(run_id, "service"))
    seen = late.read()
    assert seen is not None
    assert not seen.whole
    async with first.started(taken) as (db, _):
        with pytest.raises(ConflictError, match="took over"):
            late.take(run_id=run_id, schema_version=VERSION, seen=seen, through=0)
        assert rows_in(server, run_id) == items(db) != []
    late.close()
