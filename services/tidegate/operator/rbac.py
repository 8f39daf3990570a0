"""The Role of the operator, exactly as its chart must render it: what helm needs for the chart's objects, and no more.

No wildcards, nothing cluster-wide, no `escalate` and no `bind`: the API server lets no account give permissions that it
lacks, so those that the Roles of a release give to its pods are among these. Namespaces are Kubernetes' border: with
these permissions in a namespace the operator can read its Secrets, as helm keeps releases in Secrets.
"""

from tidegate.runtime.kubernetes_api import RbacRule

# helm applies, reads back, and removes; it watches hooks of every kind until they are there, or gone.
OWN = ("create", "delete", "get", "list", "patch", "update", "watch")


def rules() -> list[RbacRule]:
    """The rules in one namespace, or in all with a ClusterRole."""
    return [
        RbacRule(
            ("",), ("configmaps", "persistentvolumeclaims", "secrets", "serviceaccounts", "services"), OWN
        ),
        # Admission's, where it ranks or counts its actors; the sentence of a refused check, and its log.
        RbacRule(("",), ("pods",), ("get", "list", "patch", "watch")),
        RbacRule(("",), ("pods/log",), ("get",)),
        RbacRule(("apps",), ("deployments", "statefulsets"), OWN),
        RbacRule(("apps",), ("deployments/scale", "statefulsets/scale"), ("get", "patch")),
        RbacRule(("autoscaling",), ("horizontalpodautoscalers",), OWN),
        RbacRule(("batch",), ("cronjobs", "jobs"), OWN),
        RbacRule(("cert-manager.io",), ("certificates", "issuers"), OWN),
        RbacRule(("coordination.k8s.io",), ("leases",), OWN),
        RbacRule(("events.k8s.io",), ("events",), ("create", "patch")),
        RbacRule(("jobset.x-k8s.io",), ("jobsets",), OWN),
        RbacRule(("keda.sh",), ("scaledobjects", "triggerauthentications"), OWN),
        RbacRule(("leaderworkerset.x-k8s.io",), ("leaderworkersets",), OWN),
        RbacRule(("leaderworkerset.x-k8s.io",), ("leaderworkersets/scale",), ("get", "patch")),
        RbacRule(("monitoring.coreos.com",), ("prometheusrules", "servicemonitors"), OWN),
        RbacRule(("networking.k8s.io",), ("networkpolicies",), OWN),
        RbacRule(("policy",), ("poddisruptionbudgets",), OWN),
        RbacRule(("rbac.authorization.k8s.io",), ("rolebindings", "roles"), OWN),
        RbacRule(("tidegate.dev",), ("trainingruns",), ("get", "list", "patch")),
        RbacRule(("tidegate.dev",), ("trainingruns/status",), ("get", "patch")),
    ]
