"""Counts the calls that a server refused for their caller."""

from tidegate.catalogue import process
from tidegate.core.errors import PermissionDeniedError, UnauthenticatedError
from tidegate.runtime.rpc import CallMeter
from tidegate.runtime.stats_board import StatsBoard

_COUNTERS = {
    UnauthenticatedError.status: process.CALLS_REFUSED_BECAUSE.member("unauthenticated"),
    PermissionDeniedError.status: process.CALLS_REFUSED_BECAUSE.member("permission_denied"),
}


def counting_refusals(meter: CallMeter, stats: StatsBoard) -> CallMeter:
    """A meter that also counts refused calls on a service's board; from 0, so that an alert sees the first one."""
    for counter in _COUNTERS.values():
        stats.add(counter, 0.0)

    def count(method: str, seconds: float, status: str) -> None:
        meter(method, seconds, status)
        if status in _COUNTERS:
            stats.add(_COUNTERS[status])

    return count
