"""A learner as a JobSet or TrainJob under their controllers: it trains, dies, is suspended, ends, and waits for Kueue.

The controllers are installed before (tests/cluster/controllers.sh builds and installs them); a kind that the cluster
does not serve is skipped.
"""

import json

import pytest

from tests.cluster import kube
from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import CHART, CommandError, Namespace, balanced_audit, run, until, updates

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

RECOVERY_TIMEOUT_S = 300.0
KINDS = {"JobSet": "jobsets.jobset.x-k8s.io", "TrainJob": "trainjobs.trainer.kubeflow.org"}
KUEUE = "clusterqueues.kueue.x-k8s.io"
QUEUE = "team"
TARGET = 60


def require(crd: str) -> None:
    try:
        run("kubectl", "get", "crd", crd)
    except CommandError:
        pytest.skip(f"the cluster has no {crd}: tests/cluster/controllers.sh installs its controller")


def install_grouped(release: Namespace, folder: pytest.TempPathFactory, kind: str, *more: str) -> None:
    path = cartpole_values(folder.mktemp("values"))
    install(release, path, "--set", f"learner.kind={kind}", *more, wait=False)


def trains(release: Namespace) -> float:
    return kube.trains(release, more=10, timeout_s=RECOVERY_TIMEOUT_S)


def suspend(release: Namespace, kind: str, *, suspended: bool) -> None:
    patch = json.dumps({"spec": {"suspend": suspended}})
    release.kubectl("patch", KINDS[kind], f"{release.release}-learner", "--type=merge", "--patch", patch)


def is_suspended(release: Namespace, kind: str) -> bool:
    return bool(release.get(KINDS[kind], f"{release.release}-learner")["spec"].get("suspend", False))


@pytest.fixture(scope="module", params=list(KINDS))
def grouped(
    request: pytest.FixtureRequest, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Namespace, str]:
    """CartPole whose learner is an object of the kind."""
    kind: str = request.param
    require(KINDS[kind])
    release = Namespace(namespace, kind.lower())
    install_grouped(release, tmp_path_factory, kind)
    until("the services are ready", lambda: len(release.ready("admission")) == 1, timeout_s=300)
    return release, kind


def test_it_trains(grouped: tuple[Namespace, str], figures: dict[str, object]) -> None:
    release, kind = grouped
    figures[f"{kind}_trains_s"] = trains(release)
    [pod] = release.pods("learner")
    assert "jobset.sigs.k8s.io/jobset-name" in pod["metadata"]["labels"]


def test_it_goes_on_after_its_pod_was_deleted_by_force(
    grouped: tuple[Namespace, str], figures: dict[str, object]
) -> None:
    release, kind = grouped
    [pod] = release.pods("learner")
    release.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    until(
        "another pod",
        lambda: any(each["metadata"]["uid"] != pod["metadata"]["uid"] for each in release.pods("learner")),
        timeout_s=RECOVERY_TIMEOUT_S,
    )
    figures[f"{kind}_deleted_trains_again_s"] = trains(release)
    balanced_audit(release)


def test_it_waits_while_a_person_suspends_it(
    grouped: tuple[Namespace, str], figures: dict[str, object]
) -> None:
    release, kind = grouped
    before = updates(release)
    suspend(release, kind, suspended=True)
    figures[f"{kind}_suspended_s"] = until(
        "no learner", lambda: not release.pods("learner"), timeout_s=RECOVERY_TIMEOUT_S
    )
    suspend(release, kind, suspended=False)
    figures[f"{kind}_resumed_trains_s"] = trains(release)
    assert updates(release) > before, "it began behind its last checkpoint"
    balanced_audit(release)


def test_it_is_suspended_at_its_target(grouped: tuple[Namespace, str], figures: dict[str, object]) -> None:
    release, kind = grouped
    target = int(updates(release)) + TARGET
    release.helm(
        "upgrade", str(CHART), "--reset-then-reuse-values", "--set", f"run.until=version_step>={target}",
        "--timeout", "10m",
    )  # fmt: skip
    figures[f"{kind}_completes_s"] = until(
        "the learner is suspended", lambda: is_suspended(release, kind), timeout_s=600
    )
    until("no learner", lambda: not release.pods("learner"), timeout_s=RECOVERY_TIMEOUT_S)
    audit = balanced_audit(release)
    assert audit["in_flight"] == audit["available"] == 0
    release.helm("uninstall", "--wait")


def queue(release: Namespace, *, cpu: str, policy: str = "None") -> None:
    """A queue for the release's namespace with so much CPU; ``policy``: see Kueue's stopPolicy."""
    quotas = {"cpu": cpu, "memory": "8Gi", "pods": "100", "ephemeral-storage": "1Ti"}
    resources = [{"name": name, "nominalQuota": quota} for name, quota in quotas.items()]
    group = {"coveredResources": list(quotas), "flavors": [{"name": "any", "resources": resources}]}
    spec: dict[str, object] = {"namespaceSelector": {}, "stopPolicy": policy, "resourceGroups": [group]}
    specs: dict[str, dict[str, object]] = {
        "ResourceFlavor": {"metadata": {"name": "any"}},
        "ClusterQueue": {"metadata": {"name": QUEUE}, "spec": spec},
        "LocalQueue": {
            "metadata": {"name": QUEUE, "namespace": release.namespace},
            "spec": {"clusterQueue": QUEUE},
        },
    }
    manifest = "\n---\n".join(
        json.dumps({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, **rest})
        for kind, rest in specs.items()
    )
    run("kubectl", "apply", "--filename", "-", given=manifest)


@pytest.mark.parametrize("kind", KINDS)
def test_queue_without_room_holds_it_and_a_queue_that_is_drained_suspends_it(
    kind: str, namespace: str, tmp_path_factory: pytest.TempPathFactory, figures: dict[str, object]
) -> None:
    require(KINDS[kind])
    require(KUEUE)
    release = Namespace(namespace, f"q-{kind.lower()}")
    queue(release, cpu="10m")
    install_grouped(release, tmp_path_factory, kind, "--set", f"kueue.queueName={QUEUE}")
    until("the services are ready", lambda: len(release.ready("admission")) == 1, timeout_s=300)
    until("Kueue suspends it", lambda: is_suspended(release, kind), timeout_s=60)
    assert not release.pods("learner")

    queue(release, cpu="2")
    until("Kueue admits it", lambda: not is_suspended(release, kind), timeout_s=120)
    figures[f"{kind}_admitted_trains_s"] = trains(release)

    before = updates(release)
    queue(release, cpu="2", policy="HoldAndDrain")
    until("Kueue suspends it", lambda: is_suspended(release, kind), timeout_s=120)
    until("no learner", lambda: not release.pods("learner"), timeout_s=RECOVERY_TIMEOUT_S)
    queue(release, cpu="2")
    figures[f"{kind}_admitted_again_trains_s"] = trains(release)
    assert updates(release) > before
    balanced_audit(release)
    release.helm("uninstall", "--wait")
