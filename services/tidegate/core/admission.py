"""Admission: the capacity law and what the admission service decides from one snapshot.

The law (AReaL's, with everything between admission and gradient counted as running):

    capacity = min(C - running, (max_lag + 1) * B - in_flight - unannounced)

in trajectories. The learner consumes exactly B for each version, so once version ``v`` is announced, what was trained
is ``v * B`` and AReaL's ``(max_lag + v + 1) * B - accepted - running`` reduces to the right-hand term; a restart cannot
burst. ``unannounced`` counts trajectories trained beyond that: between a commit and its announcement the batch is no
longer in flight, but a rollout started now would still run under the previous version, one more behind than it seems.
At ``max_lag`` 0 it would be dropped. The law bounds the aggregate; ``required_version`` and the two hard checks bound
each trajectory.

Paced, the law bounds each trajectory as well. A rollout that is still running was started ``behind`` versions ago, so
only ``max_lag - behind`` more updates may precede its own, which bounds the work in flight:

    budget = (max_lag + 1 - behind) * B - in_flight - unannounced

which is the law with ``v`` the version of the oldest rollout instead of the newest policy. Admission then waits for
slow work instead of dropping it, at a cost in throughput, and the trained mix stays the admitted mix. Trajectories in
the store do not count: the learner trains the oldest version first.
"""

import msgspec

from tidegate.core.ids import PolicyVersion

# The pause reason while a run drains.
RUN_ENDS = "the run is ending"


class Limits(msgspec.Struct, frozen=True):
    """What admission asks the task queue to enforce. Absolute and idempotent: the last one holds (I9).

    ``max_lag`` in versions, ``batch_size`` in trajectories a learner step, ``max_running`` (C) in trajectories
    between admission and the store. ``paused`` stops admission without touching work in flight. ``paced``: the law
    waits for the oldest rollout.
    """

    max_lag: int
    batch_size: int
    max_running: int
    paused: bool = False
    reason: str = ""
    paced: bool = False

    def max_in_flight(self) -> int:
        """The most trajectories that may be between admission and gradient."""
        return (self.max_lag + 1) * self.batch_size


class Flow(msgspec.Struct, frozen=True):
    """Work in flight, in trajectories.

    ``running`` not yet in the store, ``in_flight`` not yet terminal, ``unannounced`` trained in updates that no
    announced version holds yet. ``behind``: versions published since the oldest rollout that is running was admitted.
    """

    running: int
    in_flight: int
    unannounced: int = 0
    behind: int = 0


class Admit(msgspec.Struct, frozen=True):
    """Up to ``count`` more trajectories may be admitted now."""

    count: int


class Delay(msgspec.Struct, frozen=True):
    """Nothing may be admitted now; ``reason`` names what must end first."""

    reason: str


def capacity(limits: Limits, flow: Flow) -> int:
    """Trajectories that may be admitted now (never negative)."""
    spent = flow.behind * limits.batch_size if limits.paced else 0
    budget = limits.max_in_flight() - spent - flow.in_flight - flow.unannounced
    return max(0, min(limits.max_running - flow.running, budget))


def running_bound(limits: Limits) -> str:
    """How ``max_running`` keeps lag below what ``max_lag`` allows, with the value to set; empty where it does not.

    Rollouts in flight are what ages: while the learner is faster than the actors nothing waits in the store, and
    C trajectories span C / B versions (issue 19, "the one dial is three").
    """
    needed = limits.max_in_flight()
    if limits.max_running >= needed:
        return ""
    near = max(0, limits.max_running // limits.batch_size - 1)
    return (
        f"max_running {limits.max_running:,} is below the {needed:,} trajectories that max_lag {limits.max_lag} allows"
        f" in flight: where rollouts are slower than the learner, lag stays near {near}. Remove max_running, which"
        f" then is {needed} and follows max_lag, or lower max_lag"
    )


def slots_bound(limits: Limits, *, held: int) -> str:
    """How the ``held`` trajectories of all actors keep lag well below ``max_lag``; empty where they do not.

    ``held``: generated together and held ready. A batch that waits in the store adds a version, so one version less
    than ``max_lag`` is no bound.
    """
    near = max(0, held // limits.batch_size - 1)
    if near + 1 >= limits.max_lag:
        return ""
    return (
        f"actor.slots and actor.prefetch of all actors hold {held:,} of the {limits.max_in_flight():,} trajectories"
        f" that max_lag {limits.max_lag} allows in flight: where rollouts are slower than the learner, lag stays near"
        f" {near}. Raise them until they hold {limits.max_lag * limits.batch_size:,}, add actors, or lower max_lag"
    )


def decide_admission(limits: Limits, flow: Flow, *, group_size: int) -> Admit | Delay:
    """Decide whether the task queue may publish the next tasks, in whole groups (I6)."""
    if limits.paused:
        return Delay(reason=limits.reason or "admission is paused")
    count = capacity(limits, flow) // group_size * group_size
    if count > 0:
        return Admit(count=count)
    if limits.max_running - flow.running < group_size:
        return Delay(reason="concurrency bound reached: waits for a rollout to end")
    if limits.paced and capacity(msgspec.structs.replace(limits, paced=False), flow) >= group_size:
        return Delay(reason="paced: waits for the oldest rollout, which may not be overtaken further")
    return Delay(reason="staleness budget filled: waits for a version to be published")


def required_version(limits: Limits, *, head: PolicyVersion, position: int) -> PolicyVersion:
    """The oldest policy that may start the trajectory which is ``position``-th in flight (0 is the next to be trained).

    ``position`` counts the unannounced ones too. It will be trained about ``position // batch_size`` versions from
    now, so a policy older than that minus the budget would be dropped at the end: better to wait for the newer one.
    At ``max_lag`` 0 it is always the head.
    """
    ahead = position // limits.batch_size
    return PolicyVersion(lineage=head.lineage, step=max(0, head.step + ahead - limits.max_lag))
