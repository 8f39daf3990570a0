"""Two pods of admission: one leads, the other takes over when it is deleted, killed, or on a node that is lost."""

import json
import time
from typing import Any, cast

import pytest

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import CHART, Namespace, balanced_audit, trains, until
from tidegate.admission.kubernetes.leader_label import LABEL

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def release(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """CartPole, which trains when this returns."""
    made = Namespace(namespace, "two")
    install(made, cartpole_values(tmp_path_factory.mktemp("values")), "--set", "admission.replicas=2")
    assert made.ready("admission") == ["two-admission-0", "two-admission-1"], "both, for `helm --wait`"
    trains(made, more=20, timeout_s=300)
    return made


def other_than(pod: str) -> str:
    return "two-admission-1" if pod == "two-admission-0" else "two-admission-0"


def called(release: Namespace) -> list[str]:
    """The pods behind the Service that are ready."""
    found = release.kubectl(
        "get", "endpointslices", "--selector", "kubernetes.io/service-name=two-admission", "--output=json"
    )
    slices = cast("list[dict[str, Any]]", json.loads(found)["items"])
    endpoints = [end for each in slices for end in cast("list[dict[str, Any]]", each.get("endpoints") or [])]
    return [end["targetRef"]["name"] for end in endpoints if end["conditions"]["ready"]]


def tidegate(release: Namespace, *arguments: str) -> str:
    """As the docs describe it: in the pod that leads."""
    return release.kubectl("exec", "service/two-admission", "--", "tidegate", *arguments)


def until_leads(release: Namespace, pod: str, *, timeout_s: float = 180.0) -> float:
    """Seconds until this pod, and no other, holds the Lease and is called."""
    return until(
        f"{pod} leads", lambda: release.leader() == pod and called(release) == [pod], timeout_s=timeout_s
    )


def test_one_pod_leads_and_the_other_stands_by(release: Namespace) -> None:
    leader = release.leader()
    until_leads(release, leader)
    labels = {
        pod["metadata"]["name"]: pod["metadata"]["labels"].get(LABEL) for pod in release.pods("admission")
    }
    assert labels == {leader: "true", other_than(leader): None}
    log = release.kubectl("logs", other_than(leader))
    assert "service_stands_by" in log
    assert "service_ready" not in log


def test_pause_holds_when_the_leader_is_deleted(release: Namespace, figures: dict[str, object]) -> None:
    leader = release.leader()
    tidegate(release, "pause", "--reason", "of this test")
    # The other one gets the Lease that a leader releases which ends, if the pod that replaces it does not come first.
    with release.unremovable(leader):
        release.kubectl("delete", "pod", leader, "--wait=false")
        figures["leads_after_deletion_s"] = until_leads(release, other_than(leader))
    assert "of this test" in tidegate(release, "status", "--once")
    tidegate(release, "resume")
    trains(release, more=20, timeout_s=180)
    until("both are ready", lambda: len(release.ready("admission")) == 2, timeout_s=180)
    assert release.leader() == other_than(leader), "it does not go back"


def test_leader_that_is_lost_with_its_node_is_replaced_while_the_run_trains(
    release: Namespace, figures: dict[str, object]
) -> None:
    """Its processes are gone without a word, and Kubernetes cannot remove its pod."""
    leader = release.leader()
    with release.unremovable(leader):
        release.kubectl("delete", "pod", leader, "--force", "--grace-period=0", "--wait=false")
        figures["leads_after_lost_node_s"] = until_leads(release, other_than(leader))
        figures["trains_without_it_s"] = trains(release, more=20, timeout_s=180)
        assert release.get("pod", leader)["metadata"]["deletionTimestamp"]
    until("both are ready", lambda: len(release.ready("admission")) == 2, timeout_s=180)
    balanced_audit(release)


def test_leader_that_hears_nothing_of_its_end_ends_itself(release: Namespace) -> None:
    """As one that was cut off from the API server: another pod holds the Lease all of a sudden."""
    leader = release.leader()
    restarts = release.restarts(leader)
    taken = json.dumps({"spec": {"holderIdentity": other_than(leader)}})
    release.kubectl("patch", "lease", "two-admission-leader", "--type=merge", "--patch", taken)
    until_leads(release, other_than(leader))
    until("it started again", lambda: release.restarts(leader) > restarts, timeout_s=120)
    until("it stands by", lambda: len(release.ready("admission")) == 2, timeout_s=120)
    assert release.leader() == other_than(leader)


def test_upgrade_replaces_one_pod_after_the_other_and_the_run_trains_on(
    release: Namespace, figures: dict[str, object]
) -> None:
    started_s = time.monotonic()
    release.helm(
        "upgrade",
        str(CHART),
        "--reset-then-reuse-values",
        "--set",
        "admission.podAnnotations.tried=again",
        "--wait",
    )
    figures["upgrade_s"] = time.monotonic() - started_s
    until_leads(release, release.leader())
    trains(release, more=20, timeout_s=180)
    balanced_audit(release)
    release.helm("uninstall", "--wait")
