"""The order in which an upgrade restarts the services of a run, and how a workload is held back until its turn.

A Helm upgrade changes every workload at once, and Kubernetes would restart all pods at the same time. So the operator
holds the workloads before it: a Deployment is paused, a StatefulSet gets a partition above its pods. The chart
renders neither field, so an upgrade does not touch them.
"""

from collections.abc import Iterable

from tidegate.launch.services import SERVICES
from tidegate.operator.objects import WorkloadState

# The broker first, as all others connect to it again; then who is called before who calls: the order in which services
# stop, reversed.
ORDER = (
    "nats",
    "collector",
    *(
        name.replace("_", "-")
        for name, _ in sorted(SERVICES.items(), key=lambda item: (-item[1].stop_order, item[0]))
    ),
)


def in_order(workloads: Iterable[WorkloadState]) -> list[WorkloadState]:
    """Workloads in the order of their restarts; those of no service last."""
    return sorted(workloads, key=lambda each: (_place(each.service), each.name))


def _place(service: str) -> int:
    return ORDER.index(service) if service in ORDER else len(ORDER)


def hold(workload: WorkloadState) -> dict[str, object]:
    """The merge patch after which its pods keep their revision."""
    if workload.kind == "Deployment":
        return {"spec": {"paused": True}}
    partition = max(1, workload.replicas)
    return {"spec": {"updateStrategy": {"rollingUpdate": {"partition": partition}}}}


def let_go(workload: WorkloadState) -> dict[str, object]:
    """The merge patch after which its pods get the newest revision."""
    if workload.kind == "Deployment":
        return {"spec": {"paused": False}}
    return {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}
