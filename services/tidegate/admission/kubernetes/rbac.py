"""The Role of admission, exactly as the chart must render it.

One namespace, no wildcards, no Secrets, no watches, nothing deleted. The chart makes the Lease: ``create`` cannot be
bound to a name, and uninstalling the release deletes what is the release's.
"""

from collections.abc import Sequence

from tidegate.core.scaling import Mode
from tidegate.runtime.kubernetes_api import RbacRule


def rules(
    *,
    mode: Mode,
    deletion_cost: bool,
    deployments: Sequence[str],
    lease: str,
    run: str = "",
    learner: str = "",
    ends_run: bool = False,
    pods: Sequence[str] = (),
) -> list[RbacRule]:
    """The rules of one installation.

    Pods may be listed only where admission ranks them or counts those that drain. A Role cannot limit a list to some
    labels: admission sends its selector with each (``access.Access.selector``), and a server does not enforce it.
    ``run``: the TrainingRun's name, "" without the CRD. ``ends_run``: the actors are scaled to 0 at the run's
    end, and the ``learner``, if it is a StatefulSet; a JobSet or TrainJob ends as its pods do, without the API server.
    ``pods``: of admission, where there are several; the leader labels itself.
    """
    named = tuple(deployments)
    asked = [
        *([RbacRule(("",), ("pods",), ("list",))] if deletion_cost or run else []),
        RbacRule(("apps",), ("deployments",), ("get",), named),
        RbacRule(("coordination.k8s.io",), ("leases",), ("get", "update"), (lease,)),
        RbacRule(("events.k8s.io",), ("events",), ("create", "patch")),
    ]
    if deletion_cost:
        asked.append(RbacRule(("",), ("pods",), ("patch",)))
    elif pods:
        asked.append(RbacRule(("",), ("pods",), ("patch",), tuple(pods)))
    if mode == "controller" or ends_run:
        asked.append(RbacRule(("apps",), ("deployments/scale",), ("patch",), named))
    if learner:
        asked.append(RbacRule(("apps",), ("statefulsets/scale",), ("get", "patch"), (learner,)))
    if mode == "controller":
        asked += [
            RbacRule(("autoscaling",), ("horizontalpodautoscalers",), ("list",)),
            RbacRule(("keda.sh",), ("scaledobjects",), ("list",)),
        ]
    if run:
        asked += [
            RbacRule(("tidegate.dev",), ("trainingruns",), ("get",), (run,)),
            RbacRule(("tidegate.dev",), ("trainingruns/status",), ("patch",), (run,)),
        ]
    return asked
