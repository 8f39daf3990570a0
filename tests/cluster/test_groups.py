"""Workloads of other controllers, under them: JobSet, TrainJob, Kueue, LeaderWorkerSet.

A learner that is a JobSet or TrainJob trains, dies, is suspended, completes and waits for Kueue; an actor of two nodes
is a group that lives and dies as one.

The controllers are installed before (tests/cluster/controllers.sh builds and installs them); a kind that the cluster
does not serve is skipped.
"""

import json

import pytest

from tests.cluster import kube
from tests.cluster.conftest import TAG, cartpole_values, install
from tests.cluster.kube import CHART, CommandError, Namespace, balanced_audit, run, until, updates

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

RECOVERY_TIMEOUT_S = 300.0
KINDS = {"JobSet": "jobsets.jobset.x-k8s.io", "TrainJob": "trainjobs.trainer.kubeflow.org"}
# Of an object whose work is done.
CONDITIONS = {"JobSet": "Completed", "TrainJob": "Complete"}
LEADER_WORKER_SETS = "leaderworkersets.leaderworkerset.x-k8s.io"
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


def is_complete(release: Namespace, kind: str) -> bool:
    found = release.get(KINDS[kind], f"{release.release}-learner")
    conditions = found.get("status", {}).get("conditions", [])
    return any(each["type"] == CONDITIONS[kind] and each["status"] == "True" for each in conditions)


def end_at(release: Namespace, step: int) -> None:
    """Upgrade to a target of so many versions."""
    release.helm(
        "upgrade", str(CHART), "--reset-then-reuse-values", "--set", f"run.until=version_step>={step}",
        "--timeout", "10m",
    )  # fmt: skip


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


def test_it_completes_at_its_target(grouped: tuple[Namespace, str], figures: dict[str, object]) -> None:
    release, kind = grouped
    end_at(release, int(updates(release)) + TARGET)
    figures[f"{kind}_completes_s"] = until(
        "the learner's object is complete", lambda: is_complete(release, kind), timeout_s=600
    )
    assert not is_suspended(release, kind)
    audit = balanced_audit(release)
    assert audit["in_flight"] == audit["available"] == 0
    release.helm("uninstall", "--wait")


@pytest.mark.parametrize("kind", KINDS)
def test_two_pods_train_as_one_and_end_together(
    kind: str, namespace: str, tmp_path_factory: pytest.TempPathFactory, figures: dict[str, object]
) -> None:
    require(KINDS[kind])
    release = Namespace(namespace, f"pair-{kind.lower()}")
    several = {
        "learner.ranks": 2,
        "run.learner.rank_timeout_s": 20,
        "learner.persistence.accessModes": "{ReadWriteMany}",
    }
    sets = (part for key, value in several.items() for part in ("--set", f"{key}={value}"))
    install_grouped(release, tmp_path_factory, kind, *sets)
    figures[f"{kind}_pair_trains_s"] = until(
        "both pods train", lambda: len(release.ready("learner")) == 2 and updates(release) > 10, timeout_s=600
    )
    follower = release.pods("learner")[1]["metadata"]["name"]
    release.kubectl("delete", "pod", follower, "--grace-period=0", "--force")
    figures[f"{kind}_pair_trains_again_s"] = trains(release)

    end_at(release, int(updates(release)) + TARGET)
    until("their object is complete", lambda: is_complete(release, kind), timeout_s=600)
    assert {pod["status"]["phase"] for pod in release.pods("learner")} == {"Succeeded"}
    balanced_audit(release)
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


def quota_in_use() -> set[str]:
    """What the queue's workloads reserve, of any resource."""
    found = json.loads(run("kubectl", "get", KUEUE, QUEUE, "--output", "json"))
    return {each["total"] for flavor in found["status"]["flavorsReservation"] for each in flavor["resources"]}


@pytest.mark.parametrize("kind", KINDS)
def test_queue_without_room_holds_it_one_that_is_drained_suspends_it_and_its_end_frees_the_quota(
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

    end_at(release, int(updates(release)) + TARGET)
    until("its object is complete", lambda: is_complete(release, kind), timeout_s=600)
    figures[f"{kind}_quota_freed_s"] = until(
        "its quota is free", lambda: quota_in_use() == {"0"}, timeout_s=120
    )
    balanced_audit(release)
    release.helm("uninstall", "--wait")


def test_actor_of_two_nodes_is_a_group_that_is_scaled_and_replaced_as_one(
    namespace: str, tmp_path_factory: pytest.TempPathFactory, figures: dict[str, object]
) -> None:
    require(LEADER_WORKER_SETS)
    release = Namespace(namespace, "nodes")
    second = {
        "name": "server",
        "image": f"docker.io/library/tidegate-cpu:{TAG}",
        # Instead of the second node of an inference server, which would need GPUs.
        "command": [
            "python",
            "-c",
            "import os, time; print(os.environ['LWS_LEADER_ADDRESS']); time.sleep(1e6)",
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    folder = tmp_path_factory.mktemp("values")
    path = cartpole_values(folder, actor={"server": {"update_dir": "/tmp/versions"}})  # in a pod
    groups = folder / "groups.yaml"
    groups.write_text(
        json.dumps(
            {
                "actor": {"nodes": 2, "workerContainers": [second]},
                "admission": {"kubernetes": {"enabled": False}},
            }
        )
    )
    install(release, path, "--values", str(groups), wait=False)

    def members() -> list[set[str]]:
        """The pods of each group, by their uids."""
        groups: dict[str, set[str]] = {}
        for pod in [*release.pods("actor"), *release.pods("actor-worker")]:
            index = pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"]
            groups.setdefault(index, set()).add(pod["metadata"]["uid"])
        return [groups[index] for index in sorted(groups)]

    def whole(count: int) -> bool:
        found = members()
        ready = len(release.ready("actor")) + len(release.ready("actor-worker"))
        return [len(each) for each in found] == [2] * count and ready == 2 * count

    until("a whole group", lambda: whole(1), timeout_s=600)
    figures["group_trains_s"] = trains(release)
    [worker] = release.pods("actor-worker")
    leader = release.pods("actor")[0]["metadata"]["name"]
    told = release.kubectl("logs", worker["metadata"]["name"], "--container", "server")
    assert told.startswith(f"{leader}.")

    release.kubectl("scale", LEADER_WORKER_SETS, "nodes-actor", "--replicas=2")
    figures["second_group_s"] = until("a second group", lambda: whole(2), timeout_s=600)

    before = members()[0]
    release.kubectl("delete", "pod", worker["metadata"]["name"], "--grace-period=0", "--force")
    figures["group_replaced_s"] = until(
        "another group in its place", lambda: whole(2) and not members()[0] & before, timeout_s=600
    )
    trains(release)
    balanced_audit(release)
    release.helm("uninstall", "--wait")
