"""Which actor goes first when the Deployment shrinks: ranks for ``controller.kubernetes.io/pod-deletion-cost``.

Lower goes first. In buckets, because every change is a write to the API server: an actor that is of no use now (no
report, or no policy inside the budget) before one that is idle, and that one before those that hold work, by how many
seconds of it are unfinished. Pods of which somebody else wrote the cost (Karpenter may, people do) are left alone; ours
is the annotation beside it, which says what we wrote.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tidegate.admission.kubernetes.objects import Pod
from tidegate.wire.stats import ServiceStats

COST = "controller.kubernetes.io/pod-deletion-cost"
OURS = "tidegate.dev/pod-deletion-cost"

USELESS, IDLE = -100, 0
# Seconds of unfinished work from which a cost holds: a segment, a completion, a long one, one with tools.
INVESTED = ((120.0, 40), (30.0, 30), (5.0, 20), (0.0, 10))


class CostPatch(msgspec.Struct, frozen=True):
    """A cost to write."""

    pod: str
    cost: int

    def body(self) -> dict[str, object]:
        """As a merge patch; the second annotation marks the first as ours."""
        return {"metadata": {"annotations": {COST: str(self.cost), OURS: str(self.cost)}}}


class Ranked(msgspec.Struct, frozen=True):
    """The patches to make, and the pods whose cost somebody else keeps."""

    patches: tuple[CostPatch, ...]
    foreign: tuple[str, ...]


def cost_of(actor: ServiceStats | None, *, head_step: float, max_lag: int) -> int:
    """The cost of one actor's pod. ``head_step``: of the newest version; ``max_lag`` in versions."""
    if actor is None or actor.state != "ready":
        return USELESS
    serving = actor.values.get("serving_step")
    if serving is None or head_step - serving > max_lag:
        return USELESS
    if actor.values.get("busy_tasks", 0.0) <= 0.0:
        return IDLE
    invested_s = actor.values.get("work_invested_s", 0.0)
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
    """Costs that differ from what stands there, the lowest first.

    ``actors``: the newest report by instance, which in a cluster is the pod's name. ``patched_at_s``: when each pod was
    patched last; none is patched twice within ``period_s``. Pods that are going are past ranking.
    """
    patches: list[CostPatch] = []
    foreign: list[str] = []
    for pod in pods:
        name, annotations = pod.metadata.name, pod.metadata.annotations
        if pod.metadata.deletion_timestamp:
            continue
        stands, written = annotations.get(COST), annotations.get(OURS)
        if stands is not None and stands != written:
            foreign.append(name)
            continue
        cost = cost_of(actors.get(name), head_step=head_step, max_lag=max_lag)
        since_s = now_s - patched_at_s.get(name, -period_s)
        if stands != str(cost) and since_s >= period_s:
            patches.append(CostPatch(name, cost))
    return Ranked(tuple(sorted(patches, key=lambda patch: (patch.cost, patch.pod))), tuple(sorted(foreign)))
