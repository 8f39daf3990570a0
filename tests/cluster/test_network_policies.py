"""The chart's network policies where they are enforced: a run trains under them, and nothing else gets through.

Where the cluster's own plugin accepts policies and enforces none, ``TIDEGATE_E2E_POLICY_IMAGE`` brings one that does
(``policy_enforcement``), for the other tests as well. Without either, only the flows that are allowed are tried.
"""

import json
from collections.abc import Sequence

import pytest

from tests.chart.rendering import SERVICES
from tests.chart.test_network_policies import BETWEEN_SERVICES, BROKER, GRPC, TO_BROKER, Flow
from tests.cluster.conftest import TAG
from tests.cluster.kube import Namespace, balanced_audit, run, trains

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

STRANGER = "stranger"
API_SERVER = "kubernetes.default.svc:443"
# Prints those of its arguments, HOST:PORT, that it can connect to. A packet that a policy drops is not answered.
_CONNECT = """
import socket, sys
for target in sys.argv[1:]:
    host, port = target.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
    except OSError:
        continue
    print(target)
"""


def targets(release: Namespace) -> dict[str, tuple[str, int]]:
    """What listens in a release, by the address of its Service in any namespace."""
    listening = [(service, GRPC) for service in SERVICES if service != "actor"] + [("nats", BROKER)]
    domain = f"{release.namespace}.svc"
    return {f"{release.release}-{service}.{domain}:{port}": (service, port) for service, port in listening}


def reached(place: Namespace, workload: str, addresses: Sequence[str]) -> list[str]:
    """Those of ``addresses`` that a pod of ``workload`` can connect to."""
    return place.kubectl("exec", workload, "--", "python3", "-c", _CONNECT, *addresses).split()


def flows_from(release: Namespace, caller: str) -> set[Flow]:
    """The components that a pod of ``caller`` can connect to."""
    kind = "deployment" if caller in ("actor", "environment") else "statefulset"
    named = targets(release)
    found = reached(release, f"{kind}/{release.release}-{caller}", list(named))
    return {(caller, *named[address]) for address in found}


def is_enforced(release: Namespace) -> bool:
    return ("actor", "admission", GRPC) not in flows_from(release, "actor")


def require_enforcement(release: Namespace) -> None:
    if not is_enforced(release):
        pytest.skip(
            "this cluster enforces no NetworkPolicy, and TIDEGATE_E2E_POLICY_IMAGE names no image that does"
        )


def test_run_trains_and_is_accounted_for_under_the_policies(
    release: Namespace, figures: dict[str, object]
) -> None:
    figures["policies_are_enforced"] = is_enforced(release)
    trains(release, more=50, timeout_s=300)
    balanced_audit(release)
    assert "Phase:          Succeeded" in release.helm("test", "--timeout", "5m")


def test_pods_reach_what_they_call(release: Namespace) -> None:
    found = {flow for caller in SERVICES for flow in flows_from(release, caller)}
    assert wanted() <= found, "an allowed flow is refused"


def test_pods_reach_nothing_else(release: Namespace) -> None:
    require_enforcement(release)
    found = {flow for caller in SERVICES for flow in flows_from(release, caller)}
    # What a headless Service leads to may be the pod itself, whose own address no policy sees.
    itself = {(service, service, GRPC) for service in SERVICES}
    assert found - itself == wanted() - itself


def wanted() -> set[Flow]:
    """The flows of the table between the pods of a release and to its broker."""
    return {
        (caller, called, port or GRPC)
        for caller, called, port in BETWEEN_SERVICES | TO_BROKER
        if caller in SERVICES and called in (*SERVICES, "nats")
    }


def test_commands_in_the_pod_of_admission_are_answered(release: Namespace) -> None:
    require_enforcement(release)
    assert "paused since" in release.tidegate("pause")
    release.tidegate("resume")
    trains(release, more=10, timeout_s=120)


def test_only_admission_reaches_the_api_server(release: Namespace) -> None:
    require_enforcement(release)
    for service in SERVICES:
        kind = "deployment" if service in ("actor", "environment") else "statefulset"
        found = reached(release, f"{kind}/{release.release}-{service}", [API_SERVER])
        assert bool(found) == (service == "admission"), service


@pytest.mark.parametrize("where", ["its namespace", "another namespace"])
def test_pod_that_is_not_of_the_run_reaches_none_of_it(release: Namespace, where: str) -> None:
    require_enforcement(release)
    place = release if where == "its namespace" else Namespace("default", STRANGER)
    container = {
        "name": STRANGER,
        "image": f"tidegate-light:{TAG}",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": STRANGER},
        "spec": {"containers": [container]},
    }
    place.kubectl("create", "--filename", "-", given=json.dumps(pod))
    try:
        place.kubectl("wait", f"pod/{STRANGER}", "--for=condition=Ready", "--timeout=60s")
        # It has a network: no policy selects it.
        assert reached(place, STRANGER, [API_SERVER, *targets(release)]) == [API_SERVER]
    finally:
        run(
            "kubectl",
            "--namespace",
            place.namespace,
            "delete",
            "pod",
            STRANGER,
            "--force",
            "--grace-period=0",
        )
