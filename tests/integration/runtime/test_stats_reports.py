"""Statistics on a real broker: a service reports for its own instances, whatever its reports claim."""

import asyncio

import pytest

from tidegate.core.errors import RecordError
from tidegate.runtime.bus import Bus
from tidegate.runtime.stats_reports import follow_stats, publish_stats
from tidegate.wire.stats import ServiceStats, encode_stats
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration


def report(service: str, instance: str) -> ServiceStats:
    return ServiceStats(service, instance, "ready", 1.0, 0.0, {"version_step": 1e9})


async def test_report_in_the_name_of_another_services_instance_is_refused(
    bus: Bus, topology: Topology
) -> None:
    seen: list[ServiceStats] = []
    refused: list[RecordError] = []
    await follow_stats(bus, topology, seen.append, on_refused=refused.append)
    forged = [report("learner", "learner"), report("actor", "learner"), report("actor", "environment-0")]
    own = [report("actor", "actor-0"), report("learner", "learner"), report("supervisor", "supervisor")]
    for stats in forged:  # the broker lets the user `actor` publish on this subject only
        await bus.publish_core(topology.stats("actor"), encode_stats(stats))
    await bus.publish_core(topology.stats("actor"), b"no report")
    for stats in own:
        await publish_stats(bus, topology, stats)
    async with asyncio.timeout(60.0):
        while len(seen) < len(own) or len(refused) <= len(forged):
            await asyncio.sleep(0.02)
    assert sorted(seen, key=lambda each: each.service) == own
    assert len(refused) == len(forged) + 1
    assert "learner" in str(refused[0])
