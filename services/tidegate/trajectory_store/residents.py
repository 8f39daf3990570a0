"""How stale what waits in the store already is: the trajectories that the next updates will be made of, or drop."""

from collections.abc import Iterable

import msgspec

from tidegate.core.batching import Candidate
from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import LineageTree, lag_of

# Upper end of each bucket and its name; wider where an exact number changes nothing.
LAG_BUCKETS: tuple[tuple[float, str], ...] = (
    (0, "0"),
    (1, "1"),
    (2, "2"),
    (4, "3-4"),
    (8, "5-8"),
    (float("inf"), "over 8"),
)


class Residents(msgspec.Struct, frozen=True):
    """Trajectories by lag bucket, every bucket named; age in seconds of the one that was started first."""

    by_lag: dict[str, int]
    oldest_age_s: float


def residents(
    waiting: Iterable[Candidate], *, head: PolicyVersion, tree: LineageTree, now_s: float
) -> Residents:
    """Sort what waits by its lag against ``head``.

    Raises:
        UnknownVersionError: a span names a lineage that the run never opened.
    """
    by_lag = {name: 0 for _, name in LAG_BUCKETS}
    oldest_s = now_s
    for candidate in waiting:
        oldest_s = min(oldest_s, candidate.started_at_s)
        lag = lag_of(candidate.spans, head, tree)
        by_lag[next(name for limit, name in LAG_BUCKETS if lag <= limit)] += 1
    return Residents(by_lag, max(0.0, now_s - oldest_s))
