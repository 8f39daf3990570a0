"""Publish and follow the statistics of a run's processes.

The broker lets a service publish on its own subject only (``wire.permissions``), so the subject states who sent a
report. A report that names another service, or an instance of another service, is refused.
"""

from collections.abc import Callable
from functools import partial

from tidegate.core.errors import RecordError
from tidegate.runtime.bus import Bus
from tidegate.runtime.instances import is_instance_of
from tidegate.wire.bounds import shown
from tidegate.wire.permissions import SERVICES, SUPERVISOR
from tidegate.wire.stats import ServiceStats, decode_stats, encode_stats
from tidegate.wire.subjects import Topology


async def publish_stats(bus: Bus, topology: Topology, stats: ServiceStats) -> None:
    """Publish one report; lost while the broker is away."""
    await bus.publish_core(topology.stats(stats.service), encode_stats(stats))


async def follow_stats(
    bus: Bus,
    topology: Topology,
    receive: Callable[[ServiceStats], None],
    *,
    on_refused: Callable[[RecordError], None],
) -> None:
    """Pass each report to ``receive`` until the bus is closed, and what is none to ``on_refused``."""

    async def receive_from(sender: str, data: bytes, _headers: dict[str, str]) -> None:
        try:
            stats = stats_from(sender, data)
        except RecordError as error:
            on_refused(error)
            return
        receive(stats)

    for sender in (*SERVICES, SUPERVISOR):
        await bus.subscribe(topology.stats(sender), partial(receive_from, sender))


def stats_from(sender: str, data: bytes) -> ServiceStats:
    """The report of an instance of the service ``sender``.

    Raises:
        RecordError: the bytes are no report, or one in the name of another service.
    """
    stats = decode_stats(data)
    if stats.service != sender or not is_instance_of(sender, stats.instance):
        raise RecordError(
            f"A report on the subject of {sender} is in the name of {shown(stats.instance)}, {shown(stats.service)}",
            why="a service reports for its own instances only",
            fix=f"look for a process that has the credential of {sender} and is not one",
        )
    return stats
