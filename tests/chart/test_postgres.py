"""`run.postgres` in a release: two pods with the address, and the way to it."""

import json
from typing import Any

import pytest

from tests.chart.rendering import Manifest, containers, named, needs_helm, own_pods, pods, refusal, render
from tests.chart.test_network_policies import beyond_the_release
from tidegate.runtime.instances import names_standbys
from tidegate.runtime.replication.config import URI_VARIABLE

pytestmark = [pytest.mark.chart, needs_helm]

VALUES: dict[str, Any] = {"run.postgres": {}, "postgres": {"existingSecret": "database", "port": 5433}}
REPLICATED = {"task-queue", "trajectory-store"}


def variables(objects: list[Manifest]) -> dict[str, Manifest]:
    """The variable with the address, by the container that has it."""
    return {
        each["name"]: variable
        for _, pod in pods(objects)
        for each in containers(pod)
        if each["name"] != "nats"  # which has a Secret of its own
        for variable in each.get("env", ())
        if "secretKeyRef" in variable.get("valueFrom", {})
    }


def test_release_without_replicas_has_no_address() -> None:
    assert variables(render()) == {}


def test_two_pods_alone_get_the_address_from_your_secret() -> None:
    found = variables(render(values=VALUES))
    assert set(found) == REPLICATED
    reference = {"secretKeyRef": {"name": "database", "key": "uri"}}
    assert all(each == {"name": URI_VARIABLE, "valueFrom": reference} for each in found.values())


def test_variable_and_entry_may_have_other_names() -> None:
    values = {"run.postgres": {"uri_env": "LEDGER"}, "postgres": {"existingSecret": "db", "key": "dsn"}}
    found = variables(render(values=values))
    assert {each["name"] for each in found.values()} == {"LEDGER"}
    assert {each["valueFrom"]["secretKeyRef"]["key"] for each in found.values()} == {"dsn"}


def test_two_pods_alone_reach_it() -> None:
    objects = render(values={**VALUES, "admission.kubernetes.enabled": False})
    for component in own_pods(objects):
        expected = [{"ports": [{"port": 5433}]}] if component in REPLICATED else []
        if component in (*REPLICATED, "learner", "admission", "weight-distribution", "environment"):
            assert beyond_the_release(objects, component) == expected, component


def test_volumes_are_not_needed_where_files_are_filled_from_their_replicas() -> None:
    values = {
        **VALUES,
        "taskQueue.persistence.enabled": False,
        "trajectoryStore.persistence.enabled": False,
    }
    found = own_pods(render(values=values))
    for component in REPLICATED:
        volumes = {each["name"]: each for each in found[component]["spec"]["volumes"]}
        assert "emptyDir" in volumes["data"]


def test_replicated_services_without_volumes_start_on_another_node_by_themselves() -> None:
    mine = [{"key": "dedicated", "operator": "Exists"}]
    off = {
        f"{section}.persistence.enabled": False for section in ("taskQueue", "trajectoryStore", "admission")
    }
    objects = render(values=VALUES | off | {"podDefaults.tolerations": mine})
    for name in ("t-task-queue", "t-trajectory-store"):
        spec = named(objects, "Deployment", name)["spec"]
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
        pod = spec["template"]["spec"]
        assert "emptyDir" in next(each for each in pod["volumes"] if each["name"] == "data")
        ours = [each for each in pod["tolerations"] if each not in mine]
        assert {each["key"] for each in ours} == {
            "node.kubernetes.io/unreachable",
            "node.kubernetes.io/not-ready",
        }
        assert all(each["tolerationSeconds"] <= 60 for each in ours)
        assert len(pod["tolerations"]) == len(ours) + len(mine)
    # Where another node cannot know what the lost one had, and where there is a volume, two pods must not be one.
    assert named(objects, "StatefulSet", "t-admission")["spec"]["template"]["spec"]["tolerations"] == mine
    with_volumes = render(values=VALUES)
    assert named(with_volumes, "StatefulSet", "t-trajectory-store")["spec"]["volumeClaimTemplates"]


STANDBYS: dict[str, Any] = {
    **VALUES,
    "taskQueue.replicas": 2,
    "taskQueue.persistence.enabled": False,
    "trajectoryStore.replicas": 3,
    "trajectoryStore.persistence.enabled": False,
}


def test_pods_that_stand_by_are_replaced_one_after_another_and_not_on_one_node() -> None:
    objects = render(values=STANDBYS)
    for name, replicas in (("task-queue", 2), ("trajectory-store", 3)):
        spec = named(objects, "Deployment", f"t-{name}")["spec"]
        assert spec["replicas"] == replicas
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        (preferred,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"].values()
        term = preferred[0]["podAffinityTerm"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == name


def test_callers_have_an_address_that_names_every_pod() -> None:
    objects = render(values=STANDBYS)
    for name in ("task-queue", "trajectory-store"):
        service = named(objects, "Service", f"t-{name}-pods")["spec"]
        assert service["clusterIP"] == "None"
        assert service["selector"]["app.kubernetes.io/component"] == name
    addresses = json.loads(named(objects, "ConfigMap", "t-run")["data"]["cluster.yaml"])["addresses"]
    assert addresses["task_queue"] == ["dns:///t-task-queue-pods:7700"]
    assert addresses["trajectory_store"] == ["dns:///t-trajectory-store-pods:7700"]
    assert all(
        names_standbys(address) == (service in ("task_queue", "trajectory_store"))
        for service, each in addresses.items()
        for address in each
    )


def test_certificates_have_the_name_by_which_callers_reach_every_pod() -> None:
    objects = render(values={**STANDBYS, "tls.certManager.enabled": True})
    for name in ("task-queue", "trajectory-store"):
        assert f"t-{name}-pods" in named(objects, "Certificate", f"t-{name}-tls")["spec"]["dnsNames"]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"run.postgres": None, "postgres": {}}, "run.postgres is not set"),
        ({"trajectoryStore.persistence.enabled": True}, "trajectoryStore.persistence.enabled is true"),
        ({"restore": {"from": "s3://bucket/run", "number": 1}}, "restore.from is set"),
    ],
)
def test_pods_that_could_not_stand_by_are_refused(changed: dict[str, Any], word: str) -> None:
    assert word in refusal({**STANDBYS, **changed})
