"""Pods on GPU nodes: ranks, shared memory, sidecars, privileges and users as a cluster needs them."""

from typing import Any

import pytest

from tests.chart.rendering import (
    EVERYTHING,
    SERVICES,
    Manifest,
    containers,
    environment,
    named,
    needs_helm,
    own_pods,
    pods,
    refusal,
    render,
)

pytestmark = [pytest.mark.chart, needs_helm]

SIDECAR = {"name": "server", "image": "registry.example/vllm:1", "args": ["serve", "/models/it"]}


def learner_of(values: dict[str, Any]) -> Manifest:
    return named(render(values=values), "StatefulSet", "t-learner")["spec"]


def test_learners_pod_has_a_process_for_each_of_its_gpus() -> None:
    spec = learner_of({"learner.gpu": 8})
    assert spec["replicas"] == 1
    variables = environment(spec["template"])
    assert variables["TIDEGATE_RANKS_IN_POD"] == "8"
    assert "WORLD_SIZE" not in variables, "the ranks of one pod meet in it"
    assert containers(spec["template"])[0]["resources"]["limits"]["nvidia.com/gpu"] == 8


def test_pod_with_a_gpu_asks_for_it_so_that_it_never_computes_on_the_cpu() -> None:
    rendered = own_pods(render("single-gpu"))
    assert environment(rendered["learner"])["TIDEGATE_DEVICE"] == "cuda"
    for service in set(SERVICES) - {"learner"}:
        assert "TIDEGATE_DEVICE" not in environment(rendered[service])


def test_ranks_beyond_one_pod_are_more_pods_of_as_many_gpus() -> None:
    spec = learner_of({"learner.gpu": 4, "learner.ranks": 12})
    assert spec["replicas"] == 3
    variables = environment(spec["template"])
    assert variables["TIDEGATE_RANKS_IN_POD"] == "4"
    assert variables["WORLD_SIZE"] == "12"
    assert variables["MASTER_ADDR"] == "t-learner-0.t-learner-ranks"


@pytest.mark.parametrize(
    "values",
    [
        {"learner.gpu": 8, "learner.ranks": 12},
        {"learner.gpu": 8, "run.learner.ranks": 1},
    ],
    ids=str,
)
def test_ranks_that_leave_gpus_of_a_pod_idle_are_refused_with_the_numbers_that_fit(
    values: dict[str, Any],
) -> None:
    assert "Set learner.ranks to a multiple of 8" in refusal(values)


def test_ranks_of_one_pod_need_no_way_between_pods() -> None:
    kinds = {
        ranks: {
            each["metadata"]["name"]
            for each in render(values={"learner.gpu": 8, "learner.ranks": ranks})
            if each["kind"] == "NetworkPolicy"
        }
        for ranks in (8, 16)
    }
    assert kinds[16] - kinds[8] == {"t-learner-ranks"}


def test_actors_have_shared_memory_of_their_size_and_each_pool_its_own() -> None:
    values = {"actor.sharedMemory": "8Gi", "actor.pools.spot.sharedMemory": "2Gi"}
    objects = render(values=values)
    for name, size in (("t-actor", "8Gi"), ("t-actor-spot", "2Gi")):
        pod = named(objects, "Deployment", name)["spec"]["template"]
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "shm")
        assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
        assert {"name": "shm", "mountPath": "/dev/shm"} in containers(pod)[0]["volumeMounts"]


def test_containers_of_a_users_own_are_beside_and_before_those_of_a_service() -> None:
    first = {"name": "fetch", "image": "registry.example/fetch:1"}
    values = {"actor.extraContainers": [SIDECAR], "actor.initContainers": [first]}
    rendered = own_pods(render(values=values))
    spec = rendered["actor"]["spec"]
    assert [each["name"] for each in spec["containers"]] == ["actor", "server"]
    assert spec["containers"][1] == SIDECAR
    assert spec["initContainers"] == [first]
    for service in set(SERVICES) - {"actor"}:
        assert len(containers(rendered[service])) == 1, service


def test_one_service_may_have_what_rdma_needs_and_the_others_stay_restricted() -> None:
    values = {
        "learner.securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "learner.resources.limits": {"memory": "9Gi", "rdma/hca": "1"},
    }
    rendered = own_pods(render(values=values))
    learner = containers(rendered["learner"])[0]
    assert learner["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert learner["securityContext"]["readOnlyRootFilesystem"] is True
    assert learner["resources"]["limits"]["rdma/hca"] == "1"
    assert containers(rendered["actor"])[0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_keys_of_a_pods_security_context_can_be_replaced_and_left_out() -> None:
    values = {
        "podDefaults.podSecurityContext": {"fsGroup": 2000, "supplementalGroups": [44]},
        "learner.podSecurityContext": {"runAsGroup": None},
    }
    rendered = own_pods(render(values=values))
    for service, pod in rendered.items():
        security = pod["spec"]["securityContext"]
        assert security["fsGroup"] == 2000, service
        assert security["supplementalGroups"] == [44], service
        assert security["runAsUser"] == 10001, service
        assert ("runAsGroup" in security) == (service != "learner"), service


def test_cluster_may_choose_the_user_of_every_pod() -> None:
    for name, pod in pods(render(values={**EVERYTHING, "arbitraryUser": True})):
        security = pod["spec"]["securityContext"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & security.keys(), name
        assert security["runAsNonRoot"] is True, name
        for container in containers(pod):
            assert "runAsUser" not in container["securityContext"], name


@pytest.mark.parametrize(
    ("actor", "image"),
    [
        ({"engine": "vllm", "server": {"python": "/vllm/bin/python"}}, "tidegate-actor-vllm:0.1.0"),
        ({"engine": "vllm", "server": {"url": "http://127.0.0.1:8000"}}, "tidegate-actor-gpu:0.1.0"),
        ({"engine": "torch"}, "tidegate-actor-gpu:0.1.0"),
    ],
    ids=str,
)
def test_actors_that_start_a_server_have_the_image_with_one(actor: dict[str, Any], image: str) -> None:
    rendered = own_pods(
        render(values={"run.actor": actor, "actor.gpu": 1, "run.policy.kind": "transformers"})
    )
    assert containers(rendered["actor"])[0]["image"] == image


@pytest.mark.parametrize("service", ["learner", "actor"])
def test_rdma_devices_come_with_the_right_to_lock_memory_and_only_where_they_are_asked_for(
    service: str,
) -> None:
    values = {f"{service}.gpu": 8, f"{service}.rdma": {"resource": "rdma/hca", "count": 8}}
    rendered = own_pods(render(values=values))
    container = containers(rendered[service])[0]
    assert container["resources"]["limits"]["rdma/hca"] == 8
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    for other in set(SERVICES) - {service}:
        own = containers(rendered[other])[0]
        assert own["securityContext"]["capabilities"] == {"drop": ["ALL"]}, other
        assert "rdma/hca" not in own["resources"]["limits"], other


def test_own_capabilities_go_before_those_of_rdma() -> None:
    values = {
        "learner.gpu": 8,
        "learner.rdma.resource": "rdma/hca",
        "learner.securityContext": {"capabilities": {"add": ["IPC_LOCK", "SYS_NICE"]}},
    }
    container = containers(own_pods(render(values=values))["learner"])[0]
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK", "SYS_NICE"]


@pytest.mark.parametrize("service", ["learner", "actor"])
def test_pods_may_use_network_and_shared_memory_of_their_node(service: str) -> None:
    values = {f"{service}.hostNetwork": True, f"{service}.hostIPC": True}
    rendered = own_pods(render(values=values))
    spec = rendered[service]["spec"]
    assert (spec["hostNetwork"], spec["hostIPC"]) == (True, True)
    assert spec["dnsPolicy"] == "ClusterFirstWithHostNet", "else it could not find the services"
    for other in set(SERVICES) - {service}:
        assert not {"hostNetwork", "hostIPC", "dnsPolicy"} & rendered[other]["spec"].keys(), other
