"""The operator on a real cluster: three TrainingRuns at once, from their creation to their deletion.

The operator runs in a pod of its image by default. With TIDEGATE_E2E_OPERATOR=process it is a process of this
machine, with the credentials of KUBECONFIG: for a cluster that has no image of it.
"""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import TAG, cartpole_values
from tests.cluster.kube import CHART, ROOT, CommandError, Namespace, run, until
from tidegate.runtime.python_program import python_program

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

OPERATOR_CHART = ROOT / "helm" / "tidegate-operator"
CRD = OPERATOR_CHART / "crds" / "trainingruns.yaml"
SYSTEM = "tidegate-system"
INSTALL_TIMEOUT_S = 600.0
# Of the preset for one node, and less CPU: three releases on two cores.
SMALL = {"requests": {"cpu": "10m", "memory": "96Mi"}}


def small_values() -> dict[str, Any]:
    """The chart's values for every run."""
    values: dict[str, Any] = yaml.safe_load(
        (CHART / "presets" / "one-node-cpu.yaml").read_text(encoding="utf-8")
    )
    for section in values.values():
        if "resources" in section:
            section["resources"]["requests"]["cpu"] = "10m"
    return {**values, "images": {"tag": TAG}, "check": {"resources": {**SMALL, "limits": {"memory": "2Gi"}}}}


def training_run(name: str, run_file: dict[str, Any], **spec: Any) -> str:
    document = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name},
        "spec": {"run": run_file, "volumePolicy": "Delete", **spec},
    }
    return json.dumps(document)


@pytest.fixture(scope="module")
def spaces() -> Iterator[list[str]]:
    """Two namespaces that enforce PodSecurity restricted, gone afterwards."""
    names = [f"operator-{letter}-{uuid.uuid4().hex[:5]}" for letter in "ab"]
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name in names:
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        run("kubectl", "create", "--filename", "-", given=json.dumps(manifest))
    run("kubectl", "apply", "--server-side", "--force-conflicts", "--filename", str(CRD))
    yield names
    if not os.environ.get("TIDEGATE_E2E_KEEP"):
        for name in names:
            run("kubectl", "delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def operator(spaces: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The operator of both namespaces, with room for three runs."""
    folder = tmp_path_factory.mktemp("operator")
    quota = {"total": {"runs": 3}, "each_namespace": {"runs": 2}}
    if os.environ.get("TIDEGATE_E2E_OPERATOR") == "process":
        yield from _process(spaces, folder, quota)
        return
    values = {
        "image": {"tag": TAG},
        "watch": {"namespaces": spaces},
        "runValues": small_values(),
        "config": {"quota": quota, "sync_s": 2.0},
    }
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    release = ("operator", str(OPERATOR_CHART), "--namespace", SYSTEM)
    run("helm", "upgrade", "--install", *release, "--create-namespace", "--skip-crds", "--values", str(path), "--wait",
        timeout_s=300.0)  # fmt: skip
    yield
    _delete_runs(spaces)
    run("helm", "uninstall", "operator", "--namespace", SYSTEM)


def _process(spaces: list[str], folder: Path, quota: dict[str, Any]) -> Iterator[None]:
    helm = {"chart": str(CHART), "program": os.environ.get("TIDEGATE_E2E_HELM", "helm")}
    config = {"namespaces": spaces, "values": small_values(), "quota": quota, "helm": helm, "sync_s": 2.0}
    path = folder / "operator.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "tidegate-operator"},
    }
    run("kubectl", "--namespace", spaces[0], "create", "--filename", "-", given=json.dumps(lease))
    arguments = ("operator", "--config", str(path), "--listen", "127.0.0.1:7799")
    command = python_program("tidegate.cli.main", *arguments)
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, "TIDEGATE_NAMESPACE": spaces[0]}, stdout=log, stderr=log
        )
        try:
            yield
            _delete_runs(spaces)
        finally:
            process.terminate()
            process.wait(timeout=90.0)


def _delete_runs(spaces: list[str]) -> None:
    """Before their namespaces, with which the operator loses its permissions."""
    for space in spaces:
        run("kubectl", "--namespace", space, "delete", "trainingruns", "--all", "--wait=false")
    for space in spaces:
        until(f"{space} has no run", lambda space=space: not runs_of(space), timeout_s=300.0)


def runs_of(space: str) -> dict[str, Any]:
    found = json.loads(run("kubectl", "--namespace", space, "get", "trainingruns", "--output", "json"))[
        "items"
    ]
    return {each["metadata"]["name"]: each for each in found}


def state(space: str, name: str) -> str:
    return str(runs_of(space)[name].get("status", {}).get("release", {}).get("state", ""))


def condition(space: str, name: str, kind: str) -> Any:
    found = runs_of(space)[name].get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == kind), {"status": "", "reason": "", "message": ""})


def is_true(space: str, name: str, kind: str) -> bool:
    return condition(space, name, kind)["status"] == "True"


def version(release: Namespace) -> float:
    return float(release.status()["values"].get("version_step", 0.0))


def replicas(release: Namespace) -> tuple[int, int]:
    """Actors and learners that are wanted."""
    actor = release.get("deployment", f"{release.release}-actor")
    learner = release.get("statefulset", f"{release.release}-learner")
    return int(actor["spec"]["replicas"]), int(learner["spec"]["replicas"])


@pytest.fixture(scope="module")
def trained(operator: None, spaces: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Namespace]:
    """Three runs of CartPole at once: `one` and `two` in the first namespace, `one` in the second."""
    values = cartpole_values(tmp_path_factory.mktemp("values"))
    run_file = yaml.safe_load(values.read_text(encoding="utf-8"))["run"]
    places = [Namespace(spaces[0], "one"), Namespace(spaces[0], "two"), Namespace(spaces[1], "one")]
    for place in places:
        place.kubectl("create", "--filename", "-", given=training_run(place.release, run_file))
    for place in places:
        until(
            f"{place.namespace}/{place.release} is installed",
            lambda place=place: state(place.namespace, place.release) == "Installed",
            timeout_s=INSTALL_TIMEOUT_S,
        )
        until(
            f"{place.namespace}/{place.release} is ready",
            lambda place=place: is_true(place.namespace, place.release, "Ready"),
            timeout_s=INSTALL_TIMEOUT_S,
        )
    return places


def test_three_runs_are_created_at_once_and_train(
    trained: list[Namespace], figures: dict[str, object]
) -> None:
    for place in trained:
        figures[f"trains_{place.namespace}_{place.release}_s"] = until(
            "it trains", lambda place=place: version(place) >= 5, timeout_s=300.0
        )
        assert is_true(place.namespace, place.release, "Released")
        assert not is_true(place.namespace, place.release, "Stalled")
    ids = {place.status()["run_id"] for place in trained}
    assert len(ids) == 3, "two of them have the same name, and none the same id"


def test_a_run_beyond_the_quota_waits_with_the_numbers(trained: list[Namespace], spaces: list[str]) -> None:
    run_file = runs_of(spaces[1])["one"]["spec"]["run"]
    late = Namespace(spaces[1], "late")
    late.kubectl("create", "--filename", "-", given=training_run("late", run_file))
    until("it is queued", lambda: state(spaces[1], "late") == "Queued", timeout_s=60.0)
    assert condition(spaces[1], "late", "Admitted")["reason"] == "QuotaExceeded"
    assert "3 of 3 runs of all namespaces are taken" in condition(spaces[1], "late", "Admitted")["message"]
    late.kubectl("delete", "trainingrun", "late", "--timeout=60s")


def test_a_refused_run_file_says_why(trained: list[Namespace], spaces: list[str]) -> None:
    place = trained[1]
    before = place.get("trainingrun", "two")["spec"]["run"]
    wrong = json.dumps({"spec": {"run": {"stalenes": {"max_lag": 2}}}})
    place.kubectl("patch", "trainingrun", "two", "--type=merge", "--patch", wrong)
    until("it is stalled", lambda: is_true(spaces[0], "two", "Stalled"), timeout_s=120.0)
    assert "additional properties 'stalenes' not allowed" in condition(spaces[0], "two", "Stalled")["message"]
    right = json.dumps([{"op": "replace", "path": "/spec/run", "value": before}])
    place.kubectl("patch", "trainingrun", "two", "--type=json", "--patch", right)
    until("it is not", lambda: not is_true(spaces[0], "two", "Stalled"), timeout_s=120.0)
    assert len(place.ready("learner")) == 1, "the release worked on"


def test_a_suspended_run_gives_its_pods_back_and_the_others_train_on(
    trained: list[Namespace], spaces: list[str], figures: dict[str, object]
) -> None:
    suspended, other = trained[0], trained[2]
    suspended.kubectl("scale", "deployment/one-actor", "--replicas=2")
    until("two actors", lambda: replicas(suspended) == (2, 1), timeout_s=60.0)
    suspended.kubectl("patch", "trainingrun", "one", "--type=merge", "--patch", '{"spec": {"suspend": true}}')
    figures["suspended_s"] = until(
        "its pods are at 0",
        lambda: state(spaces[0], "one") == "Suspended" and replicas(suspended) == (0, 0),
        timeout_s=300.0,
    )
    assert runs_of(spaces[0])["one"]["status"]["release"]["replicas"] == {"one-actor": 2, "one-learner": 1}
    before = version(other)
    until("the other namesake trains", lambda: version(other) >= before + 5, timeout_s=180.0)
    until("admission calls it ready", lambda: is_true(spaces[0], "one", "Ready"), timeout_s=120.0)


def test_a_resumed_run_has_its_numbers_again_and_trains_on(
    trained: list[Namespace], spaces: list[str], figures: dict[str, object]
) -> None:
    place = trained[0]
    place.kubectl("patch", "trainingrun", "one", "--type=merge", "--patch", '{"spec": {"suspend": false}}')
    figures["resumed_s"] = until("its pods are wanted", lambda: replicas(place) == (2, 1), timeout_s=120.0)
    until("it is installed", lambda: state(spaces[0], "one") == "Installed", timeout_s=120.0)
    before = version(place)
    until("it trains", lambda: version(place) >= before + 5, timeout_s=300.0)


def secrets(place: Namespace) -> str:
    return place.kubectl("get", "secrets", "--output", "name")


def started_at(place: Namespace) -> dict[str, str]:
    """When the newest pod of each service was started."""
    return {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["metadata"]["creationTimestamp"]
        for pod in place.pods()
        if "job-name" not in pod["metadata"]["labels"]
    }


def test_a_change_restarts_one_service_after_another(
    trained: list[Namespace], spaces: list[str], figures: dict[str, object]
) -> None:
    place = trained[1]
    before = started_at(place)
    change = json.dumps(
        {"spec": {"values": {"podDefaults": {"podAnnotations": {"example.org/change": "1"}}}}}
    )
    place.kubectl("patch", "trainingrun", "two", "--type=merge", "--patch", change)
    until("it restarts", lambda: state(spaces[0], "two") == "Restarting", timeout_s=180.0)
    figures["restarted_s"] = until(
        "all have", lambda: state(spaces[0], "two") == "Installed", timeout_s=INSTALL_TIMEOUT_S
    )
    after = started_at(place)
    replaced = sorted((after[each], each) for each in after if after[each] != before.get(each))
    figures["restarts"] = replaced
    services = [service for _, service in replaced]
    assert set(services) >= {"admission", "task-queue", "trajectory-store", "learner", "environment", "actor"}
    assert services.index("admission") < services.index("trajectory-store") < services.index("actor")
    assert len({at for at, _ in replaced}) == len(replaced), "never two at the same time"
    audit = place.audit()
    assert audit["balanced"], audit["problems"]


def test_a_run_completes_expires_and_keeps_its_status(
    trained: list[Namespace], spaces: list[str], figures: dict[str, object]
) -> None:
    place = trained[2]
    target = int(version(place)) + 5
    change = json.dumps({"spec": {"run": {"until": f"version_step>={target}"}}})
    place.kubectl("patch", "trainingrun", "one", "--type=merge", "--patch", change)
    figures["completed_s"] = until(
        "it is complete", lambda: is_true(spaces[1], "one", "Completed"), timeout_s=600.0
    )
    until("its pods are at 0", lambda: replicas(place) == (0, 0), timeout_s=120.0)
    until("it gave its place back", lambda: not is_true(spaces[1], "one", "Admitted"), timeout_s=60.0)


def test_an_operator_killed_while_it_installs_is_followed_by_one_that_finishes(
    trained: list[Namespace], spaces: list[str], figures: dict[str, object]
) -> None:
    """Helm's record of the unfinished install must not keep the next operator from installing."""
    if os.environ.get("TIDEGATE_E2E_OPERATOR") == "process":
        pytest.skip("the operator is a process of this machine, which nothing starts again")
    late = Namespace(spaces[1], "late")
    run_file = runs_of(spaces[0])["two"]["spec"]["run"]
    late.kubectl("create", "--filename", "-", given=training_run("late", run_file))
    until("helm installs it", lambda: "sh.helm.release.v1.late.v1" in secrets(late), timeout_s=120.0)
    assert state(spaces[1], "late") == "Applying"
    pods = ("--selector", "app.kubernetes.io/name=tidegate-operator", "--force", "--grace-period=0")
    run("kubectl", "--namespace", SYSTEM, "delete", "pod", *pods)
    figures["installed_after_a_kill_s"] = until(
        "it is installed", lambda: state(spaces[1], "late") == "Installed", timeout_s=INSTALL_TIMEOUT_S
    )
    until("it trains", lambda: version(late) >= 5, timeout_s=300.0)
    assert not is_true(spaces[1], "late", "Stalled")
    assert late.audit()["balanced"]


def test_deletion_removes_everything_of_one_run_and_nothing_of_the_others(
    trained: list[Namespace], spaces: list[str], figures: dict[str, object]
) -> None:
    place, neighbour = trained[0], trained[1]
    pods = {pod["metadata"]["uid"] for pod in neighbour.pods()}
    place.kubectl("delete", "trainingrun", "one", "--wait=false")
    figures["deleted_s"] = until("it is gone", lambda: "one" not in runs_of(spaces[0]), timeout_s=300.0)

    def nothing_is_left() -> bool:
        kinds = "deployments,statefulsets,services,configmaps,secrets,jobs,pods,persistentvolumeclaims,roles,leases"
        found = json.loads(
            place.kubectl("get", kinds, "--selector", "app.kubernetes.io/instance=one", "--output", "json")
        )
        return not found["items"]

    until("nothing is left of it", nothing_is_left, timeout_s=180.0)
    with pytest.raises(CommandError):
        place.get("secret", "sh.helm.release.v1.one.v1")
    assert {pod["metadata"]["uid"] for pod in neighbour.pods()} == pods
    assert runs_of(spaces[1])["one"], "the namesake in the other namespace is another run"
