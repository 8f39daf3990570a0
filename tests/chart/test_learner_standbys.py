"""`learner.standbys` in a release: more pods of the learner, of which one trains."""

import json
from typing import Any

import pytest

from tests.chart.rendering import named, needs_helm, refusal, render
from tidegate.runtime.instances import names_standbys

pytestmark = [pytest.mark.chart, needs_helm]

STANDBY: dict[str, Any] = {"learner.standbys": 1}


def test_pods_have_a_volume_each_and_are_replaced_one_after_another_and_not_on_one_node() -> None:
    spec = named(render(values=STANDBY), "StatefulSet", "t-learner")["spec"]
    assert spec["replicas"] == 2
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    assert [each["metadata"]["name"] for each in spec["volumeClaimTemplates"]] == ["data"]
    (preferred,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    assert preferred[0]["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    variables = {each["name"] for each in spec["template"]["spec"]["containers"][0]["env"]}
    assert "WORLD_SIZE" not in variables, "they are no ranks of one learner"


def test_callers_reach_every_pod_and_call_the_one_that_trains() -> None:
    objects = render(values={**STANDBY, "tls.certManager.enabled": True})
    addresses = json.loads(named(objects, "ConfigMap", "t-run")["data"]["cluster.yaml"])["addresses"]
    assert addresses["learner"] == ["dns:///t-learner-pods:7700"]
    assert [service for service, [address] in addresses.items() if names_standbys(address)] == ["learner"]
    assert named(objects, "Service", "t-learner-pods")["spec"]["clusterIP"] == "None"
    assert "t-learner-pods" in named(objects, "Certificate", "t-learner-tls")["spec"]["dnsNames"]
    assert (
        "statefulset.kubernetes.io/pod-name" not in named(objects, "Service", "t-learner")["spec"]["selector"]
    )


def test_pods_of_several_gpus_have_a_group_of_ranks_each() -> None:
    spec = named(render(values={**STANDBY, "learner.gpu": 2}), "StatefulSet", "t-learner")["spec"]
    assert spec["replicas"] == 2
    variables = {each["name"]: each for each in spec["template"]["spec"]["containers"][0]["env"]}
    assert variables["TIDEGATE_RANKS_IN_POD"]["value"] == "2"
    assert "WORLD_SIZE" not in variables


def test_release_without_them_is_as_before() -> None:
    objects = render()
    assert named(objects, "StatefulSet", "t-learner")["spec"]["replicas"] == 1
    selector = named(objects, "Service", "t-learner")["spec"]["selector"]
    assert selector["statefulset.kubernetes.io/pod-name"] == "t-learner-0"
    assert not [each for each in objects if each["metadata"]["name"] == "t-learner-pods"]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"learner.ranks": 2}, "ranks in 2 pods"),
        ({"learner.gpu": 2, "learner.ranks": 4}, "ranks in 2 pods"),
        ({"learner.kind": "JobSet"}, "learner.kind JobSet"),
    ],
)
def test_learner_that_cannot_stand_by_is_refused(changed: dict[str, Any], word: str) -> None:
    assert word in refusal(values={**STANDBY, **changed})
