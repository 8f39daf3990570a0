"""The volume of a pretrained model: the same folder in actors, learner and check, filled once a node or a claim."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import (
    SERVICES,
    Manifest,
    component,
    needs_helm,
    of_kind,
    own_pods,
    pods,
    refusal,
    render,
)
from tests.chart.test_versions import problems
from tests.unit.models.tiny_llama import make_folder
from tidegate.cli.app import run

pytestmark = [pytest.mark.chart, needs_helm]

READERS = ("actor", "learner", "check")
POLICY = {"run.workload.kind": "text", "run.policy": {"kind": "transformers", "path": "/models/base/it"}}
CLAIM = {**POLICY, "model.claim": "hub", "model.path": "qwen/7b"}
CACHE = {**CLAIM, "model.nodeCache": "/var/models"}
LOADED = {**POLICY, "model.claim": "hub", "model.url": "https://hub.example/org/it/resolve/main"}
IMAGE = {**POLICY, "model.image": "registry.example/models/it:1"}


def readers(values: dict[str, Any]) -> dict[str, Manifest]:
    """Pods that read the model, by component."""
    return {component(pod): pod for _, pod in pods(render(values=values)) if component(pod) in READERS}


def volumes(pod: Manifest) -> dict[str, Manifest]:
    return {each["name"]: each for each in pod["spec"]["volumes"]}


def mount(pod: Manifest) -> Manifest:
    (found,) = (each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["name"] == "model")
    return found


def filling(pod: Manifest) -> Manifest | None:
    return next((each for each in pod["spec"].get("initContainers", []) if each["name"] == "model"), None)


def test_without_a_model_no_pod_has_its_volume() -> None:
    for _, pod in pods(render(values=POLICY)):
        assert "model" not in volumes(pod)


def test_folder_of_a_claim_is_mounted_where_the_run_file_reads_it() -> None:
    for service, pod in readers(CLAIM).items():
        assert volumes(pod)["model"]["persistentVolumeClaim"] == {"claimName": "hub"}, service
        assert mount(pod) == {
            "name": "model",
            "mountPath": "/models/base",
            "subPath": "qwen/7b",
            "readOnly": True,
        }
        assert filling(pod) is None, service


@pytest.mark.parametrize("values", [CLAIM, CACHE, LOADED, IMAGE], ids=["claim", "cache", "loaded", "image"])
def test_only_pods_that_read_the_model_have_it(values: dict[str, Any]) -> None:
    assert set(readers(values)) == set(READERS)
    others = own_pods(render(values=values))
    for service in set(SERVICES) - set(READERS):
        assert "model" not in volumes(others[service]), service


def test_every_pool_of_actors_has_the_model() -> None:
    objects = render(values={**CACHE, "actor.pools.spot.nodeSelector": {"pool": "spot"}})
    actors = [pod for _, pod in pods(objects) if component(pod) == "actor"]
    assert len(actors) == 2
    assert all(filling(pod) and mount(pod)["mountPath"] == "/models/base" for pod in actors)


@pytest.mark.parametrize("values", [CACHE, LOADED], ids=["cache", "loaded"])
def test_all_pods_fill_and_read_one_folder(values: dict[str, Any]) -> None:
    folders: set[str] = set()
    for pod in readers(values).values():
        container = filling(pod)
        assert container is not None
        assert container["image"] == pod["spec"]["containers"][0]["image"], "it is on the node already"
        (into,) = (each for each in container["args"] if each.startswith("--into="))
        assert into == f"--into=/model-volume/{mount(pod)['subPath']}"
        assert mount(pod)["readOnly"]
        folders.add(into)
    assert len(folders) == 1


def test_another_source_is_another_folder() -> None:
    found = {
        mount(readers(values)["actor"])["subPath"]
        for values in (CACHE, {**CACHE, "model.path": "qwen/14b"}, LOADED, {**CACHE, "model.claim": "other"})
    }
    assert len(found) == 4


def test_node_cache_is_a_folder_of_the_node_filled_from_the_claim() -> None:
    pod = readers(CACHE)["actor"]
    assert volumes(pod)["model"]["hostPath"] == {"path": "/var/models", "type": "Directory"}
    assert volumes(pod)["model-source"]["persistentVolumeClaim"] == {"claimName": "hub", "readOnly": True}
    container = filling(pod)
    assert container is not None
    assert container["args"][1] == "/model-source/qwen/7b"


def test_init_containers_command_is_one_that_the_image_has(tmp_path: Path) -> None:
    container = filling(readers(CACHE)["learner"])
    assert container is not None
    model = make_folder(tmp_path / "qwen", tied=True)
    places = {"/model-source/qwen/7b": str(model), "/model-volume": str(tmp_path / "volume")}
    pattern = re.compile("|".join(places))
    command = [pattern.sub(lambda found: places[found[0]], each) for each in container["args"]]
    assert run(command) == 0
    (filled,) = (tmp_path / "volume").glob("model-*")
    assert (filled / "config.json").is_file()


def test_ones_own_init_containers_come_after_it() -> None:
    first = {"name": "warm", "image": "registry.example/warm:1"}
    pod = readers({**CACHE, "actor.initContainers": [first]})["actor"]
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["model", "warm"]


def test_server_is_asked_with_a_token_of_a_secret_and_reached_through_the_policies() -> None:
    values = {**LOADED, "model.existingSecret": "hub-token"}
    container = filling(readers(values)["learner"])
    assert container is not None
    (token,) = (each for each in container["env"] if each["name"] == "TIDEGATE_MODEL_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hub-token", "key": "token"}
    policies = {component(each): each for each in of_kind(render(values=values), "NetworkPolicy")}
    for service in READERS:
        assert {"ports": [{"port": 443}]} in policies[service]["spec"]["egress"], service
    assert {"ports": [{"port": 443}]} not in policies["trajectory-store"]["spec"].get("egress", [])
    hook = policies["check"]["metadata"]["annotations"]["helm.sh/hook"]
    assert hook == "pre-install,pre-upgrade"


@pytest.mark.parametrize(
    ("url", "port"), [("http://hub.example:8080/it", 8080), ("http://hub.example/it", 80)]
)
def test_port_of_the_server_is_that_of_the_url(url: str, port: int) -> None:
    policies = {
        component(each): each
        for each in of_kind(render(values={**LOADED, "model.url": url}), "NetworkPolicy")
    }
    assert {"ports": [{"port": port}]} in policies["actor"]["spec"]["egress"]


def test_limited_addresses_limit_the_server_of_the_model_too() -> None:
    values = {**LOADED, "networkPolicy.externalEgress": [{"cidr": "10.0.0.0/8", "port": 443}]}
    policies = {component(each): each for each in of_kind(render(values=values), "NetworkPolicy")}
    for service in READERS:
        assert {"ports": [{"port": 443}]} not in policies[service]["spec"]["egress"], service
        assert any(
            rule.get("to") == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
            for rule in policies[service]["spec"]["egress"]
        )


def test_image_is_a_volume_that_newer_kubernetes_accept() -> None:
    objects = render(values=IMAGE)
    actor = next(each for each in of_kind(objects, "Deployment") if each["metadata"]["name"] == "t-actor")
    pod = own_pods(objects)["actor"]
    assert volumes(pod)["model"]["image"] == {
        "reference": "registry.example/models/it:1",
        "pullPolicy": "IfNotPresent",
    }
    assert "subPath" not in mount(pod)
    assert problems(actor, 30) != []
    for minor in range(31, 35):
        assert problems(actor, minor) == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"model.claim": "hub"},
            'run.policy.path is "": pods see the model at model.mountPath, /models/base',
        ),
        ({**CLAIM, "model.mountPath": "/models/bas"}, "model is set and run.policy.path is"),
        ({**IMAGE, "model.claim": "hub"}, "model.image and another source"),
        ({**LOADED, "model.nodeCache": "/var/models"}, "two sources of one cache"),
        ({**POLICY, "model.url": "https://hub.example/it"}, "no volume to load it into"),
        ({**POLICY, "model.nodeCache": "/var/models"}, "nothing to fill it from"),
        ({**POLICY, "model.path": "it"}, "model.path is it and model.claim empty"),
        ({**LOADED, "model.path": "it"}, "model.path is it and model.url is set"),
        ({**CLAIM, "model.existingSecret": "it"}, "model.existingSecret is set without model.url"),
    ],
)
def test_sources_that_exclude_each_other_are_refused(values: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(values)
