"""The hard sync: admission stops, the pipeline runs empty, every actor reaches the newest version, work resumes.

It trades throughput for a periodic moment at which nothing stale is in flight. A pure state machine, advanced every
tick; every wait has a deadline, because a service may be down (I9).
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from tidegate.core.ids import PolicyVersion

Phase: TypeAlias = Literal["running", "draining", "spreading"]


class HardSyncConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When to synchronise, and how long that may take.

    ``every_versions``: versions between two syncs; 0 never. Each costs about one rollout and one pull of idle time, so
    every 100 versions of a second each costs a percent or two. ``timeout_s``: seconds after which a sync is aborted,
    because a service does not answer; the next one is a whole period later.
    """

    every_versions: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    timeout_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 60.0


# Prefix of the reason of a pause that ends by itself.
REASON = "hard sync"
# Statistics are up to half a second old: earlier than this they may describe the time before the sync started.
DRAIN_S_MIN = 1.0


class SyncView(msgspec.Struct, frozen=True):
    """The input of a sync.

    ``head``: the newest announced version (None before the first). ``running``, ``in_flight``, ``unannounced``:
    trajectories, as in ``core.admission.Flow``; ``running`` is None while the task queue does not report. ``serving``:
    the version of each living actor. ``drain_asked``: the learner's last batch was in a tier that drains.
    """

    head: PolicyVersion | None
    running: int | None
    in_flight: int
    unannounced: int
    serving: tuple[PolicyVersion, ...]
    drain_asked: bool = False


class SyncState(msgspec.Struct, frozen=True):
    """The state of a sync. ``since_s`` on a monotonic clock. ``last``: the version of the last sync or attempt."""

    phase: Phase = "running"
    since_s: float = 0.0
    last: PolicyVersion | None = None
    completed: int = 0
    aborted: int = 0

    @property
    def pauses(self) -> bool:
        """Whether admission is stopped for it."""
        return self.phase != "running"

    def reason(self) -> str:
        """The reason that admission reports while it is stopped."""
        waits_for = (
            "work in flight to end" if self.phase == "draining" else "every actor to serve the newest version"
        )
        return f"{REASON}: waits for {waits_for}"


def advance(
    state: SyncState, view: SyncView, config: HardSyncConfig, *, batch_size: int, now_s: float
) -> SyncState:
    """The next state. The same view twice changes nothing further.

    Drained means: nothing is rolled out, nothing trained awaits its announcement, and what is left is less than a
    batch, which no learner step could take until admission resumes.
    """
    if view.head is None:
        return state
    if now_s < state.since_s:
        # A clock that was set back must not make the deadline a far one.
        state = msgspec.structs.replace(state, since_s=now_s)
    if state.last is None:
        # The first tick, or a restarted admission: a period starts here.
        state = msgspec.structs.replace(state, last=view.head)
    if state.phase == "running":
        return _begin(state, view, view.head, config, now_s=now_s)
    if now_s - state.since_s > config.timeout_s:
        return msgspec.structs.replace(
            state, phase="running", since_s=now_s, last=view.head, aborted=state.aborted + 1
        )
    drained = now_s - state.since_s >= DRAIN_S_MIN and _drained(view, batch_size)
    if state.phase == "draining" and not drained:
        return state
    if all(version == view.head for version in view.serving):
        return msgspec.structs.replace(
            state, phase="running", since_s=now_s, last=view.head, completed=state.completed + 1
        )
    return msgspec.structs.replace(state, phase="spreading")


def _begin(
    state: SyncState, view: SyncView, head: PolicyVersion, config: HardSyncConfig, *, now_s: float
) -> SyncState:
    last = state.last
    if last is None or last.lineage != head.lineage:
        # The learner restored a checkpoint: its steps are not comparable with those of before.
        return msgspec.structs.replace(state, last=head)
    due = config.every_versions > 0 and head.step - last.step >= config.every_versions
    # One drain a version at most: the batch that asked for it is still the last one while the pipeline empties.
    asked = view.drain_asked and head != last
    if not due and not asked:
        return state
    return msgspec.structs.replace(state, phase="draining", since_s=now_s)


def _drained(view: SyncView, batch_size: int) -> bool:
    return view.running == 0 and view.unannounced == 0 and view.in_flight < batch_size
