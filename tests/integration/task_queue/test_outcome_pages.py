"""The queue follows the outcome log page by page, also where a page holds nothing."""

from pathlib import Path

import pytest

from tests.integration.task_queue.world import FakeStore, Taker, announce_version
from tests.support.broker import Broker
from tests.support.service_harness import make_context, running
from tests.support.settings import make_settings
from tidegate.core.ids import task_id
from tidegate.runtime.bus import Bus
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.task_queue.main import build
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration


async def test_queue_goes_on_behind_a_page_that_holds_nothing(
    tmp_path: Path, nats: Broker, bus: Bus, topology: Topology
) -> None:
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=0)
    store, taker = FakeStore(), Taker(bus, topology)
    context = make_context("task_queue", settings, bus=bus)
    async with (
        store.serving(settings.addresses["trajectory_store"][0]),
        running(build, TaskQueueConfig(outcomes_limit=2), context),
    ):
        await announce_version(bus, topology, 0)
        first, _ = await taker.take(2)
        store.skip(2)
        store.add_outcome(f"{first.task_id}.0", "dropped")
        assert [task.task_id for task in await taker.take(1)] == [task_id(3)]
