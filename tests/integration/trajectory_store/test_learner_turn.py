"""The store tells two learners which of them trains: real gRPC, its own ledger."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.service_harness import channel_of_test, make_context, running
from tests.support.settings import make_settings
from tidegate.core.errors import RecordError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.staleness import Lineage
from tidegate.runtime.bus import Bus
from tidegate.runtime.service import ServiceContext
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.main import build
from tidegate.wire.clients.learner_turn import LearnerTurnClient
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient

pytestmark = pytest.mark.integration

CONFIG = TrajectoryStoreConfig()
MAIN = Lineage(LineageName("0-main"))
FORK = Lineage(LineageName("1-fork"), parent=MAIN.name, fork_step=1)


@pytest.fixture
def make(tmp_path: Path, nats: Broker, bus: Bus) -> Callable[[], ServiceContext]:
    """A store's process, on the same folder each time."""
    settings = make_settings(tmp_path, broker_url=nats.url)
    return lambda: make_context("trajectory_store", settings, bus=bus)


@pytest.fixture
async def store(make: Callable[[], ServiceContext]) -> AsyncIterator[ServiceContext]:
    async with running(build, CONFIG, make()) as context:
        yield context


def instance(context: ServiceContext, name: str) -> LearnerTurnClient:
    return LearnerTurnClient(channel_of_test(context, "trajectory_store"), instance=name)


def main(step: int) -> PolicyVersion:
    return PolicyVersion(MAIN.name, step)


async def test_first_learner_of_a_run_begins_at_once_and_is_followed_when_it_ends(
    store: ServiceContext,
) -> None:
    first, second = instance(store, "first"), instance(store, "second")
    assert (await first.wait(checkpoint=None)).has_turn
    assert not (await second.wait(checkpoint=None)).has_turn
    assert (await first.keep()).has_turn
    await second.end()
    assert not (await second.wait(checkpoint=None)).has_turn
    await first.end()
    assert (await second.wait(checkpoint=None)).has_turn
    assert not (await first.keep()).has_turn


async def test_learner_whose_checkpoint_is_older_than_what_payloads_are_kept_for_is_behind(
    store: ServiceContext,
) -> None:
    client = TrajectoryStoreClient(channel_of_test(store, "trajectory_store"))
    second = instance(store, "second")
    await client.open_lineage(MAIN, learner_id="l")
    assert not (await second.wait(checkpoint=None)).is_behind, "payloads of all updates are there"
    await client.mark_checkpointed(main(1))
    asked = {
        checkpoint: (await second.wait(checkpoint=checkpoint)).is_behind
        for checkpoint in (None, main(0), main(1), main(2), PolicyVersion(LineageName("0-other"), 9))
    }
    assert list(asked.values()) == [True, True, False, False, True]
    await client.open_lineage(FORK, learner_id="l")
    assert (await second.wait(checkpoint=main(2))).is_behind, "that update was abandoned"
    assert not (await second.wait(checkpoint=PolicyVersion(FORK.name, 1))).is_behind


async def test_store_that_starts_again_waits_for_the_learner_that_worked(
    make: Callable[[], ServiceContext],
) -> None:
    async with running(build, CONFIG, make()) as context:
        client = TrajectoryStoreClient(channel_of_test(context, "trajectory_store"))
        assert (await instance(context, "first").wait(checkpoint=None)).has_turn
        await client.open_lineage(MAIN, learner_id="l")
    async with running(build, CONFIG, make()) as context:
        assert not (await instance(context, "second").wait(checkpoint=None)).has_turn
        assert (await instance(context, "first").keep()).has_turn
        assert not (await instance(context, "second").keep()).has_turn


async def test_names_that_cannot_be_are_refused(store: ServiceContext) -> None:
    too_long = instance(store, "x" * 5000)
    for ask in (too_long.keep, too_long.end, lambda: too_long.wait(checkpoint=None)):
        with pytest.raises(RecordError):
            await ask()
    with pytest.raises(RecordError):
        await instance(store, "a").wait(checkpoint=PolicyVersion(LineageName("no lineage"), -1))
