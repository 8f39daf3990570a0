"""Two stores of a run: one works, the other takes over the ledger; a real PostgreSQL, a real broker, real gRPC."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.support.broker import Broker, free_port
from tests.support.postgres import find_programs, running_server
from tests.support.service_harness import channel_of_test, make_context, running
from tests.support.settings import make_settings
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import LineageName, TrajectoryId
from tidegate.core.staleness import Lineage
from tidegate.runtime.bus import Bus
from tidegate.runtime.replication import database, ownership, replica
from tidegate.runtime.replication.config import URI_VARIABLE, PostgresConfig
from tidegate.runtime.service import ServiceContext
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.main import build, turn
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_programs() is None, reason="there is no PostgreSQL here (Debian: postgresql)"),
]

CONFIG = TrajectoryStoreConfig()
MAIN = Lineage(name=LineageName("main"), parent=None, fork_step=0)
CHILD = Lineage(name=LineageName("child"), parent=MAIN.name, fork_step=0)


@pytest.fixture
def make(tmp_path: Path, nats: Broker, bus: Bus) -> Callable[[str], ServiceContext]:
    """The context of an instance, which has a folder of its own."""
    listen = {name: f"127.0.0.1:{free_port()}" for name in ("first", "second")}

    def made(name: str) -> ServiceContext:
        settings = make_settings(tmp_path / name, broker_url=nats.url)
        both = f"ipv4:{','.join(listen.values())}"
        settings = msgspec.structs.replace(
            settings,
            listen=listen[name],
            addresses={**settings.addresses, "trajectory_store": [both]},
            postgres=PostgresConfig(),
        )
        return make_context("trajectory_store", settings, bus=bus)

    return made


async def stand_by(context: ServiceContext) -> None:
    waiting = turn(context, CONFIG)
    assert waiting is not None
    await waiting


def dropped(number: int) -> list[Dropped]:
    return [Dropped(TrajectoryId(f"test-run-{number}.0"), "failed", "its actor ended")]


async def test_second_store_serves_the_ledger_of_the_first_to_the_same_callers(
    make: Callable[[str], ServiceContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "SILENT_S", 3600.0)  # it is released, and not considered dead
    first, second, caller = make("first"), make("second"), make("first")
    store = TrajectoryStoreClient(channel_of_test(caller, "trajectory_store"))
    with running_server() as server:
        monkeypatch.setenv(URI_VARIABLE, server.uri)
        await stand_by(first)
        waiting = asyncio.create_task(stand_by(second))
        async with running(build, CONFIG, first):
            assert await eventually(store, dropped(1)) == 1
            await store.open_lineage(MAIN, learner_id="l")
            assert not waiting.done()
        await waiting
        async with running(build, CONFIG, second):
            assert await eventually(store, dropped(1)) == 0, "the ledger has it"
            assert await eventually(store, dropped(2)) == 1
            totals, _ = await store.ledger()
            assert totals.dropped == {"failed": 2}
            tree, _ = await store.open_lineage(CHILD, learner_id="l")
            assert list(tree.lineages) == [MAIN.name, CHILD.name]
    await caller.channels.close()


async def test_call_of_an_instance_that_was_replaced_may_be_made_again(
    make: Callable[[str], ServiceContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller calls the other one next; it must not take the answer for a conflict of its own, and end."""
    with running_server() as server:
        monkeypatch.setenv(URI_VARIABLE, server.uri)
        monkeypatch.setattr(replica, "PERIOD_S", 3600.0)  # else it ends itself before it is called
        context = make("first")
        await stand_by(context)
        async with running(build, CONFIG, context):
            store = TrajectoryStoreClient(channel_of_test(context, "trajectory_store"))
            assert await eventually(store, dropped(1)) == 1
            schema = database.schema_name(context.settings.run, "trajectory_store")
            with closing(database.ReplicaDatabase(server.uri, schema=schema)) as other:
                seen = other.read()
                assert seen is not None
                other.take(run_id=seen.run_id, schema_version=seen.schema_version, seen=seen, through=0)
            with pytest.raises(UnavailableError, match="call again"):
                await store.drop_unarrived(dropped(2))
            # What it does not know, the one that took over may have.
            with pytest.raises(UnavailableError, match="call again"):
                await store.trajectory(TrajectoryId("test-run-9.0"))


async def eventually(store: TrajectoryStoreClient, drops: list[Dropped]) -> int:
    """Once the channel has found the instance that works."""
    async with asyncio.timeout(60.0):
        while True:
            try:
                return await store.drop_unarrived(drops)
            except UnavailableError:
                await asyncio.sleep(0.05)
