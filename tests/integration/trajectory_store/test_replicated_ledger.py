"""The random histories of the ledger's model, with nodes lost at any point: the ledger is filled from PostgreSQL."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, rule

from tests.support.examples import num_examples
from tests.support.postgres import PostgresServer, find_programs, running_server
from tests.unit.trajectory_store.building import RUN, open_store
from tests.unit.trajectory_store.test_ledger_model import CONFIG, LedgerMachine
from tidegate.runtime.replication.changes import all_rows, changed_rows, newest_change, track
from tidegate.runtime.replication.database import ReplicaDatabase
from tidegate.runtime.replication.opening import Kind, fill
from tidegate.runtime.replication.tables import read_tables
from tidegate.trajectory_store.ledger import Ledger
from tidegate.trajectory_store.payload_replica import PayloadReplica
from tidegate.trajectory_store.replay.replay import REPLAY_FOLDER
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.trajectory_store.segments import SEGMENTS_FOLDER, segments_in

pytestmark = pytest.mark.skipif(
    find_programs() is None, reason="there is no PostgreSQL here (Debian: postgresql)"
)


def tables_of(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of a ledger."""
    with closing(sqlite3.connect(path)) as db:
        return {
            table.name: sorted(db.execute(f"SELECT * FROM {table.name}").fetchall(), key=repr)
            for table in read_tables(db)
        }


class ReplicatedLedgerMachine(LedgerMachine):
    """The same histories. After each event the replica is up to date, as before each answer."""

    server: ClassVar[PostgresServer]
    num_machines: ClassVar[int] = 0

    @initialize()
    def start(self) -> None:
        """Begin to replicate, before the first event."""
        super().start()
        type(self).num_machines += 1
        self.schema = f"tidegate_machine_{self.num_machines}"
        self.epoch: int | None = None
        self.follow()

    def database(self) -> ReplicaDatabase:
        """Of the present folder."""
        return ReplicaDatabase(
            self.server.uri,
            schema=self.schema,
            files=PayloadReplica(self.folder / SEGMENTS_FOLDER, replay=self.folder / REPLAY_FOLDER),
        )

    def follow(self) -> None:
        """Of the store that was just opened."""
        self.replica = self.database()
        self.epoch = self.replica.take(run_id=RUN, schema_version=1, seen=self.replica.read(), through=0)
        db = self.store.ledger.connection
        track(db, read_tables(db), epoch=self.epoch)
        self.pushed = 0
        if self.epoch == 1:
            tables = read_tables(db)
            self.replica.copy(tables, all_rows(db, tables), epoch=self.epoch, through=newest_change(db))
        self.followed = self.store

    def push(self) -> None:
        """What the service does before each answer."""
        if self.store is not self.followed:  # it crashed, and began again on its own files
            self.replica.close()
            self.follow()
        db = self.store.ledger.connection
        newest = newest_change(db)
        assert self.epoch is not None
        changes = changed_rows(db, read_tables(db), after=self.pushed)
        self.replica.push(changes, epoch=self.epoch, after=self.pushed, through=newest)
        self.pushed = newest

    def check_invariants(self, settings: Any, output: Any, runtimes: Any) -> None:
        """Between two events: first the replica."""
        if hasattr(self, "replica"):
            self.push()
        super().check_invariants(settings, output, runtimes)

    @rule()
    def loss_of_the_node(self) -> None:
        """Another node, with an empty volume."""
        self.push()
        before = tables_of(self.folder / LEDGER_FILE)
        segments = segments_in(self.folder / SEGMENTS_FOLDER)
        sizes = {path.name: path.stat().st_size for path in (self.folder / SEGMENTS_FOLDER).iterdir()}
        self.store.close()
        self.replica.close()
        shutil.rmtree(self.folder)
        self.num_folders += 1
        self.folder = self.root / str(self.num_folders)
        self.folder.mkdir()
        filling = self.database()
        fill(self.kind(), filling, epoch=0)
        filling.close()
        assert tables_of(self.folder / LEDGER_FILE) == before
        assert segments_in(self.folder / SEGMENTS_FOLDER) <= segments
        assert all(
            path.stat().st_size <= sizes[path.name] for path in (self.folder / SEGMENTS_FOLDER).iterdir()
        )
        self.store = open_store(self.folder, config=CONFIG, now_s=self.now_s)

    def teardown(self) -> None:
        """Let go of the connection, too."""
        if hasattr(self, "replica"):
            self.replica.close()
        super().teardown()

    def kind(self) -> Kind:
        """The ledger of the present folder."""
        return Kind(RUN, 1, self.folder / LEDGER_FILE, lambda path: Ledger.open(path, run_id=RUN).close())


ReplicatedLedgerMachine.TestCase.settings = settings(max_examples=num_examples(15), stateful_step_count=40)


@pytest.mark.usefixtures("_server")
class TestReplicatedLedger(ReplicatedLedgerMachine.TestCase):
    """The model's test, beside a server."""


@pytest.fixture(scope="module")
def _server() -> Iterator[None]:
    with running_server() as server:
        ReplicatedLedgerMachine.server = server
        yield
