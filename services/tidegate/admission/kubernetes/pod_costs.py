"""Which actor is deleted first when the Deployment shrinks: ``controller.kubernetes.io/pod-deletion-cost``.

The lowest cost is deleted first. Costs are buckets, because every change is a write to the API server: first an actor
without use now (no report, or no policy inside the budget), then an idle one, then those with work in flight, by
seconds of unfinished work. Pods whose cost another writer set (Karpenter, an operator) are left alone; a second
annotation records the cost that we wrote.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tidegate.admission.kubernetes.objects import Pod
from tidegate.catalogue import actor as actor_stats
from tidegate.wire.stats import ServiceStats

COST = "controller.kubernetes.io/pod-deletion-cost"
OURS = "tidegate.dev/pod-deletion-cost"

USELESS, IDLE = -100, 0
# Minimum seconds of unfinished work of each cost: a completion with tools, a long one, a completion, a segment.
INVESTED = ((120.0, 40), (30.0, 30), (5.0, 20), (0.0, 10))


class CostPatch(msgspec.Struct, frozen=True):
    """A cost to write."""

    pod: str
    cost: int

    def body(self) -> dict[str, object]:
        """The merge patch; the second annotation marks the first as ours."""
        return {"metadata": {"annotations": {COST: str(self.cost), OURS: str(self.cost)}}}


class Ranked(msgspec.Struct, frozen=True):
    """The patches to write, and the pods whose cost another writer set."""

    patches: tuple[CostPatch, ...]
    foreign: tuple[str, ...]


def cost_of(actor: ServiceStats | None, *, head_step: float, max_lag: int) -> int:
    """The cost of one actor's pod. ``head_step``: of the newest version; ``max_lag`` in versions."""
    if actor is None or actor.state != "ready":
        return USELESS
    serving = actor.values.get(actor_stats.SERVING_STEP)
    if serving is None or head_step - serving > max_lag:
        return USELESS
    if actor.values.get(actor_stats.BUSY_TASKS, 0.0) <= 0.0:
        return IDLE
    invested_s = actor.values.get(actor_stats.WORK_INVESTED_S, 0.0)
    return next((cost for from_s, cost in INVESTED if invested_s >= from_s), INVESTED[-1][1])


def rank(
    pods: Iterable[Pod],
    actors: Mapping[str, ServiceStats],
    patched_at_s: Mapping[str, float],
    *,
    head_step: float,
    max_lag: int,
    period_s: float,
    now_s: float,
) -> Ranked:
    """Costs that differ from the pods' annotations, the lowest first.

    ``actors``: the newest report by instance, which in a cluster is the pod's name. ``patched_at_s``: when each pod was
    patched last; none is patched twice within ``period_s``. Terminating pods are skipped.
    """
    patches: list[CostPatch] = []
    foreign: list[str] = []
    for pod in pods:
        name, annotations = pod.metadata.name, pod.metadata.annotations
        if pod.metadata.deletion_timestamp:
            continue
        current, written = annotations.get(COST), annotations.get(OURS)
        if current is not None and current != written:
            foreign.append(name)
            continue
        cost = cost_of(actors.get(name), head_step=head_step, max_lag=max_lag)
        since_s = now_s - patched_at_s.get(name, -period_s)
        if current != str(cost) and since_s >= period_s:
            patches.append(CostPatch(name, cost))
    return Ranked(tuple(sorted(patches, key=lambda patch: (patch.cost, patch.pod))), tuple(sorted(foreign)))
