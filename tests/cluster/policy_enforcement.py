"""Enforces network policies where the cluster's own plugin does not: kube-router's firewall, on every node.

``TIDEGATE_E2E_POLICY_IMAGE`` names an image of it (tests/cluster/kube_router.sh builds one). It neither routes nor
balances: pods and Services stay with the cluster's own programs.
"""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tests.cluster.kube import Namespace, run

IMAGE_OF_ENFORCER = os.environ.get("TIDEGATE_E2E_POLICY_IMAGE", "")
_NAME = "policy-enforcement"
# Its rules outlive it, and its own `--cleanup-config` removes none of them.
_PROGRAM = r"""
kube-router --run-firewall=true --run-router=false --run-service-proxy=false & firewall=$!
clean() {
    kill $firewall; wait $firewall
    iptables-save -t filter | sed -nE 's/^-A ((INPUT|FORWARD|OUTPUT) .*KUBE-ROUTER-)/-D \1/p' | xargs -rL1 iptables -w
    chains=$(iptables-save -t filter | sed -nE 's/^:(KUBE-(ROUTER|POD-FW|NWPLCY)[^ ]*) .*/\1/p')
    for chain in $chains; do iptables -w -F "$chain"; done
    for chain in $chains; do iptables -w -X "$chain"; done
    ipset list -n | grep -E '^KUBE-(DST|SRC)-' | xargs -rn1 ipset destroy
    exit
}
trap clean TERM
wait $firewall
"""
_READ = ["get", "list", "watch"]
_RULES = [
    {
        "apiGroups": [""],
        "resources": ["namespaces", "pods", "services", "nodes", "endpoints"],
        "verbs": _READ,
    },
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": _READ},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": _READ},
]


@contextmanager
def policy_enforcement() -> Generator[None]:
    """Enforced from here to the end; nothing is done without an image."""
    if not IMAGE_OF_ENFORCER:
        yield
        return
    place = Namespace(_NAME, _NAME)
    try:
        for manifest in _objects():
            run("kubectl", "apply", "--filename", "-", given=json.dumps(manifest))
        place.kubectl("rollout", "status", f"daemonset/{_NAME}", "--timeout=120s", timeout_s=150.0)
        yield
    finally:
        # Its pod is gone when this returns, and with it what it refused.
        place.kubectl("delete", "daemonset", _NAME, "--cascade=foreground", "--ignore-not-found")
        # Waited for: the next module begins in a namespace of the same name.
        run("kubectl", "delete", "namespace,clusterrole,clusterrolebinding", _NAME)


def resolver_settings() -> list[str]:
    """Settings of the chart that let pods resolve names where the cluster's resolver is no pod."""
    labels = ("--selector", "kubernetes.io/service-name=kube-dns", "--output", "json")
    found = run("kubectl", "--namespace", "kube-system", "get", "endpointslices", *labels)
    ends = [end for each in json.loads(found)["items"] for end in each["endpoints"] if "targetRef" not in end]
    addresses = ",".join(f"{address}/32" for end in ends for address in end["addresses"])
    return ["--set", f"networkPolicy.dnsCidrs={{{addresses}}}"] if addresses else []


def _objects() -> list[dict[str, Any]]:
    rbac = "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": "default", "namespace": _NAME}
    # A privileged process of the node's own network.
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAME, "labels": labels}},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": _NAME},
            "rules": _RULES,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _NAME},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": _NAME},
            "subjects": [account],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": _NAME, "namespace": _NAME},
            "spec": {
                "selector": {"matchLabels": {"app": _NAME}},
                "template": {"metadata": {"labels": {"app": _NAME}}, "spec": _pod()},
            },
        },
    ]


def _pod() -> dict[str, Any]:
    return {
        "hostNetwork": True,
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": _NAME,
                "image": IMAGE_OF_ENFORCER,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", _PROGRAM],
                "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "readinessProbe": {"httpGet": {"path": "/healthz", "port": 20244}, "periodSeconds": 2},
                "securityContext": {"privileged": True},
                "volumeMounts": [{"name": "lock", "mountPath": "/run/xtables.lock"}],
            }
        ],
        # Shared with the cluster's own programs, which write rules as well.
        "volumes": [
            {"name": "lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
        ],
    }
