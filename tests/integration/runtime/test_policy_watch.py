"""Following POLICY: the newest version wins in any order of arrival and across failures of the broker."""

import asyncio
from itertools import pairwise
from math import ceil
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import structlog

from tests.support.broker import Broker
from tests.support.service_harness import until
from tidegate.catalogue import process
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.runtime.bus import Bus
from tidegate.runtime.drain import Drain
from tidegate.runtime.policy_watch import REFRESH_S, PolicyWatch
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.streams import Stored
from tidegate.wire.policy_payload import announce
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

ROOT = Lineage(LineageName("0-a"))
FORK = Lineage(LineageName("1-b"), parent=ROOT.name, fork_step=1)


def version(lineage: Lineage, step: int) -> PolicyVersion:
    return PolicyVersion(lineage.name, step)


def announcement(at: PolicyVersion, *lineages: Lineage) -> bytes:
    tree = LineageTree()
    for lineage in lineages or (ROOT,):
        tree = tree.add(lineage)
    message, chunks = announce(PolicySnapshot(at, {"w": np.zeros(3, dtype=np.float32)}), tree)
    message.inline_payload = b"".join(chunks)
    return message.SerializeToString()


class Following:
    """A watch that runs until the test ends."""

    def __init__(self, bus: Bus, topology: Topology) -> None:
        self.bus = bus
        self.subject = topology.policy("default")
        self.drain = Drain()
        self.stats = StatsBoard(service="actor", instance="actor-0", started_at_s=0.0)
        context = SimpleNamespace(
            bus=bus, topology=topology, drain=self.drain, stats=self.stats, log=structlog.get_logger()
        )
        self.watch = PolicyWatch(cast("ServiceContext", context))
        self.task = asyncio.create_task(self.watch.run())

    async def publish(self, at: PolicyVersion, *lineages: Lineage) -> None:
        await self.bus.publish(self.subject, announcement(at, *lineages), message_id=str(at))

    async def until(self, at: PolicyVersion) -> None:
        async with asyncio.timeout(60.0):
            while self.watch.head is None or self.watch.head.version != at:
                await self.watch.changed(self.watch.head.version if self.watch.head else None, timeout_s=1.0)


async def test_the_newest_version_is_found_at_the_start_and_followed(bus: Bus, topology: Topology) -> None:
    await bus.publish(topology.policy("default"), announcement(version(ROOT, 4)), message_id="v4")
    following = Following(bus, topology)
    await following.until(version(ROOT, 4))
    await following.publish(version(ROOT, 5))
    await following.until(version(ROOT, 5))
    assert following.watch.head is not None
    snapshot = following.watch.head.inline_snapshot()
    assert snapshot is not None
    assert snapshot.tensors["w"].tolist() == [0.0, 0.0, 0.0]


async def test_an_older_version_that_arrives_late_is_ignored(bus: Bus, topology: Topology) -> None:
    following = Following(bus, topology)
    await following.publish(version(ROOT, 5))
    await following.until(version(ROOT, 5))
    await following.publish(version(ROOT, 4))
    assert await following.watch.changed(version(ROOT, 5), timeout_s=1.5) is None


async def test_restored_learner_wins_although_its_step_is_smaller(bus: Bus, topology: Topology) -> None:
    following = Following(bus, topology)
    await following.publish(version(ROOT, 9))
    await following.until(version(ROOT, 9))
    await following.publish(version(FORK, 1), ROOT, FORK)
    await following.until(version(FORK, 1))
    await following.publish(version(ROOT, 10))
    assert await following.watch.changed(version(FORK, 1), timeout_s=1.5) is None


async def test_bytes_that_are_no_announcement_are_counted_and_change_nothing(
    bus: Bus, topology: Topology
) -> None:
    following = Following(bus, topology)
    await following.publish(version(ROOT, 1))
    await following.until(version(ROOT, 1))
    await bus.publish_core(following.subject, b"\xff not a message")
    await until(lambda: following.stats.value(process.ANNOUNCEMENTS_IGNORED) == 1)
    assert await following.watch.changed(version(ROOT, 1), timeout_s=0.5) is None
    assert following.stats.value(process.ANNOUNCEMENTS_IGNORED) == 1


@pytest.mark.own_broker
async def test_a_version_published_while_the_broker_crashed_is_seen_after_it(
    bus: Bus, nats: Broker, topology: Topology
) -> None:
    following = Following(bus, topology)
    await following.publish(version(ROOT, 1))
    await following.until(version(ROOT, 1))
    await nats.restart(down_s=0.2)
    await following.publish(version(ROOT, 2))
    await following.until(version(ROOT, 2))


async def test_the_stream_is_read_in_quiet_seconds_only(
    bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    last = bus.last

    async def read(stream: str, subject: str) -> Stored | None:
        reads.append(subject)
        return await last(stream, subject)

    monkeypatch.setattr(bus, "last", read)
    loop = asyncio.get_running_loop()
    following = Following(bus, topology)
    seen_at_s = [loop.time()]
    for step in range(12):
        await following.publish(version(ROOT, step), ROOT)
        await following.until(version(ROOT, step))
        seen_at_s.append(loop.time())
        await asyncio.sleep(REFRESH_S / 4)
    # On a machine that is busy with other things, some seconds were quiet.
    gaps_s = [after_s - before_s for before_s, after_s in pairwise([*seen_at_s, loop.time()])]
    num_quiet = sum(ceil(gap_s / REFRESH_S) for gap_s in gaps_s if gap_s > 0.5 * REFRESH_S)
    assert len(reads) <= 2 + num_quiet, "at the start, and in quiet seconds"
    num_reads = len(reads)
    await until(lambda: len(reads) >= num_reads + 2)
