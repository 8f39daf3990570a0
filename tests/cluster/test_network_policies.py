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
from tests.cluster.kube import Namespace, balanced_audit, trains
from tests.cluster.servers import RESTRICTED

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


@pytest.fixture(scope="module")
def flows(release: Namespace) -> set[Flow]:
    """What the pods of a release can connect to, of all that listens in it."""
    named = targets(release)
    return {
        (caller, *named[address])
        for caller in SERVICES
        for address in reached(release, release.workload(caller), list(named))
    }


def is_enforced(flows: set[Flow]) -> bool:
    return ("actor", "admission", GRPC) not in flows


@pytest.fixture
def enforced(flows: set[Flow]) -> None:
    if not is_enforced(flows):
        pytest.skip(
            "this cluster enforces no NetworkPolicy, and TIDEGATE_E2E_POLICY_IMAGE names no image that does"
        )


def test_run_trains_and_is_accounted_for_under_the_policies(
    release: Namespace, flows: set[Flow], figures: dict[str, object]
) -> None:
    figures["policies_are_enforced"] = is_enforced(flows)
    trains(release, more=50, timeout_s=300)
    balanced_audit(release)
    assert "Phase:          Succeeded" in release.helm("test", "--timeout", "5m")


def test_pods_reach_what_they_call(flows: set[Flow]) -> None:
    assert wanted() <= flows, "an allowed flow is refused"


def test_pods_reach_nothing_else(enforced: None, flows: set[Flow]) -> None:
    # What a headless Service leads to may be the pod itself, whose own address no policy sees.
    itself = {(service, service, GRPC) for service in SERVICES}
    assert flows - itself == wanted() - itself


def wanted() -> set[Flow]:
    """The flows of the table between the pods of a release and to its broker."""
    return {
        (caller, called, port or GRPC)
        for caller, called, port in BETWEEN_SERVICES | TO_BROKER
        if caller in SERVICES and called in (*SERVICES, "nats")
    }


def test_commands_in_the_pod_of_admission_are_answered(enforced: None, release: Namespace) -> None:
    assert "paused since" in release.tidegate("pause")
    release.tidegate("resume")
    trains(release, more=10, timeout_s=120)


def test_only_admission_reaches_the_api_server(enforced: None, release: Namespace) -> None:
    for service in SERVICES:
        found = reached(release, release.workload(service), [API_SERVER])
        assert bool(found) == (service == "admission"), service


@pytest.mark.parametrize("where", ["its namespace", "another namespace"])
def test_pod_that_is_not_of_the_run_reaches_none_of_it(
    enforced: None, release: Namespace, where: str
) -> None:
    place = release if where == "its namespace" else Namespace("default", STRANGER)
    container = {
        "name": STRANGER,
        "image": f"tidegate-light:{TAG}",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "securityContext": RESTRICTED,
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
        place.kubectl("delete", "pod", STRANGER, "--force", "--grace-period=0")
