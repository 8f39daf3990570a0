"""How long a new version takes until 95 % of the living actors serve it. Without IO.

One version is followed at a time; versions published meanwhile are skipped, and the newest is followed next.
Everything is read from statistics. The learner reports the time of publication by its own clock, so that end is exact
but for the message's latency. An actor's next report shows that it serves the version, up to one
``telemetry.stats_period_s`` (half a second) late: the measured time is too short by at most a message's latency, and
too long by at most that period. A version that every actor superseded before it was observed counts as served.
"""

from collections.abc import Mapping

import msgspec

from tidegate.catalogue import learner as learner_stats
from tidegate.core.ids import LineageName, PolicyVersion, parse_version
from tidegate.wire.stats import ServiceStats

SERVING_SHARE = 0.95
NO_LINEAGE = LineageName("")


class Publication(msgspec.Struct, frozen=True):
    """A version and when it was published, on the observer's clock."""

    version: PolicyVersion
    at_s: float


class Propagation(msgspec.Struct, frozen=True):
    """``followed``: the version that is propagating; ``seen``: the newest known publication."""

    followed: Publication | None = None
    seen: Publication | None = None


def publication_of(stats: ServiceStats, *, received_at_s: float) -> Publication | None:
    """The newest publication in a learner's report; None when the report has none."""
    published_at_s = stats.values.get(learner_stats.PUBLISHED_AT_S)
    if published_at_s is None:
        return None
    try:
        version = parse_version(stats.labels.get(learner_stats.PUBLISHED_VERSION, ""))
    except ValueError:
        return None
    since_s = max(0.0, stats.at_s - published_at_s)
    return Publication(version, received_at_s - since_s)


def note(state: Propagation, publication: Publication | None) -> Propagation:
    """Record the learner's newest publication. The first one observed may be old and is not followed."""
    if publication is None or (state.seen is not None and publication.version == state.seen.version):
        return state
    if state.seen is None:
        return Propagation(seen=publication)
    followed = state.followed
    # A restored learner publishes on another lineage: the followed version will never be served.
    if followed is None or followed.version.lineage != publication.version.lineage:
        followed = publication
    return Propagation(followed=followed, seen=publication)


def abandon(state: Propagation) -> Propagation:
    """Follow no version: in a declared pause no actor may serve it. The next publication is followed again."""
    return Propagation(seen=state.seen)


def check_arrival(
    state: Propagation, serving: Mapping[PolicyVersion, int], *, num_actors: int, now_s: float
) -> tuple[Propagation, float | None]:
    """Check whether the followed version has arrived; if so, after how many seconds."""
    if state.followed is None or not num_actors:
        return state, None
    wanted = state.followed.version
    arrived = sum(
        count
        for version, count in serving.items()
        if version.step >= wanted.step and version.lineage in (wanted.lineage, NO_LINEAGE)
    )
    if arrived < SERVING_SHARE * num_actors:
        return state, None
    return Propagation(seen=state.seen), max(0.0, now_s - state.followed.at_s)


def seconds_waiting(state: Propagation, *, now_s: float) -> float | None:
    """Seconds since the followed version was published; None when none is followed."""
    return None if state.followed is None else now_s - state.followed.at_s
