"""How long a new version takes until 95 % of the living actors serve it. Without IO.

One version is followed at a time; those published meanwhile are skipped, the next one followed is the newest then. All
is seen through statistics. When a version was published is told with them by the learner's own clock, so that side is
exact but for the message's way. That an actor serves it is seen with the actor's next report, up to one
``telemetry.stats_period_s`` (half a second) late: the time is never too short by more than a message's way, and too
long by at most that period. A version that is superseded on every actor before it is looked for counts as served.
"""

from collections.abc import Mapping

import msgspec

from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.wire.stats import ServiceStats

SERVING_SHARE = 0.95
NO_LINEAGE = LineageName("")


class Publication(msgspec.Struct, frozen=True):
    """A version and when it was published, on the clock of whoever follows it."""

    version: PolicyVersion
    at_s: float


class Propagation(msgspec.Struct, frozen=True):
    """``followed`` is on its way; ``seen`` was published last, as far as is known."""

    followed: Publication | None = None
    seen: Publication | None = None


def publication_of(stats: ServiceStats, *, received_at_s: float) -> Publication | None:
    """What a learner's report says it published last; None when it says nothing of the kind."""
    lineage, separator, step = stats.labels.get("published_version", "").rpartition("@")
    published_at_s = stats.values.get("published_at_s")
    if not separator or not step.isdecimal() or published_at_s is None:
        return None
    since_s = max(0.0, stats.at_s - published_at_s)
    return Publication(PolicyVersion(LineageName(lineage), int(step)), received_at_s - since_s)


def note(state: Propagation, publication: Publication | None) -> Propagation:
    """The learner said what it published last. The first word of all may be about the past, and is not followed."""
    if publication is None or (state.seen is not None and publication.version == state.seen.version):
        return state
    if state.seen is None:
        return Propagation(seen=publication)
    followed = state.followed
    # A learner that was restored publishes on another branch: nobody will serve what was under way.
    if followed is None or followed.version.lineage != publication.version.lineage:
        followed = publication
    return Propagation(followed=followed, seen=publication)


def look(
    state: Propagation, serving: Mapping[PolicyVersion, int], *, num_actors: int, now_s: float
) -> tuple[Propagation, float | None]:
    """Whether the version under way has arrived; if so, after how many seconds."""
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


def under_way_s(state: Propagation, *, now_s: float) -> float | None:
    """For how long the version that is followed has been on its way; None when none is."""
    return None if state.followed is None else now_s - state.followed.at_s
