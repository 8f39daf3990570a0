"""`run.backup` in a release: one container with the bucket's credentials, and what it may reach."""

from typing import Any

import pytest

from tests.chart.rendering import Manifest, containers, named, needs_helm, own_pods, pods, render
from tests.chart.test_network_policies import beyond_the_release
from tidegate.cli.registry import COMMANDS
from tidegate.launch.backup.volumes import ON_VOLUMES
from tidegate.launch.operator_credential import FOLDER_DEFAULT
from tidegate.runtime.call_credentials import DIGESTS_FILE, token_file

pytestmark = [pytest.mark.chart, needs_helm]

VALUES: dict[str, Any] = {
    "run.backup": {"to": "s3://bucket/runs", "every_s": 60},
    "backup": {"existingSecret": "bucket", "port": 9000},
}


def backup_containers(objects: list[Manifest]) -> list[Manifest]:
    return [each for _, pod in pods(objects) for each in containers(pod) if each["name"] == "backup"]


def test_release_without_backups_has_nothing_of_them() -> None:
    objects = render()
    assert backup_containers(objects) == []
    assert not any(
        "backup" in volume["name"] for _, pod in pods(objects) for volume in pod["spec"].get("volumes", ())
    )


def test_one_container_beside_admission_makes_them_with_credentials_that_no_other_has() -> None:
    objects = render(values=VALUES)
    (backup,) = backup_containers(objects)
    pod = own_pods(objects)["admission"]
    assert [each["name"] for each in pod["spec"]["containers"]] == ["admission", "backup"]
    assert backup["image"] == pod["spec"]["containers"][0]["image"]  # the light one, which has obstore
    assert backup["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    others = [
        each
        for _, other in pods(objects)
        for each in containers(other)
        if each["name"] not in ("backup", "restore")
    ]
    assert not any("envFrom" in each for each in others)
    mounts = {each["mountPath"]: each["name"] for each in backup["volumeMounts"]}
    assert mounts["/data"] == "data"  # where admission reads backup.json
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    items = volumes[mounts[FOLDER_DEFAULT]]["secret"]["items"]
    assert {each["key"] for each in items} == {DIGESTS_FILE, token_file("backup")}
    own = {each["key"] for each in volumes["credentials"]["secret"]["items"]}
    assert token_file("backup") not in own
    name, *_ = backup["args"]
    assert name in COMMANDS
    assert backup["securityContext"]["readOnlyRootFilesystem"]


def test_admission_alone_reaches_the_bucket_and_only_at_its_port_or_addresses() -> None:
    objects = render(values={**VALUES, "admission.kubernetes.enabled": False})
    assert beyond_the_release(objects, "admission") == [{"ports": [{"port": 9000}]}]
    assert beyond_the_release(objects, "learner") == [{"ports": [{"port": 9000}]}]  # if it lost its volume
    for component in ("trajectory-store", "task-queue", "weight-distribution"):
        assert beyond_the_release(objects, component) == []
    egress = [{"cidr": "10.1.0.0/16", "port": 443}]
    limited = render(
        values={**VALUES, "admission.kubernetes.enabled": False, "networkPolicy.externalEgress": egress}
    )
    assert beyond_the_release(limited, "admission") == [
        {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}
    ]


def test_learner_that_lost_its_volume_is_filled_from_the_newest_backup() -> None:
    pod = own_pods(render(values=VALUES))["learner"]
    (restore,) = [each for each in pod["spec"]["initContainers"] if each["name"] == "restore"]
    assert restore["args"][:4] == ["restore-volume", "learner", "--from=s3://bucket/runs", "--if-lost"]
    assert restore["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert not any("envFrom" in each for each in pod["spec"]["containers"])
    others = own_pods(render(values=VALUES))
    for component in ("trajectory-store", "task-queue", "weight-distribution", "admission"):
        assert not any(
            each["name"] == "restore" for each in others[component]["spec"].get("initContainers", ())
        )


def test_backups_need_no_right_in_the_cluster() -> None:
    def rights(values: dict[str, Any]) -> list[Manifest]:
        return [
            each for each in render(values=values) if each["kind"] in ("Role", "RoleBinding", "ClusterRole")
        ]

    assert rights(VALUES) == rights({})


def test_document_of_the_run_reaches_the_container_as_the_run_file_has_it() -> None:
    for place in ("gs://bucket/runs", {"to": "az://box/runs", "keep": 5}):
        document = named(render(values={"run.backup": place}), "ConfigMap", "t-run")["data"]["run.yaml"]
        assert "bucket/runs" in document or "box/runs" in document


RESTORE: dict[str, Any] = {
    "restore": {"from": "s3://bucket/runs", "number": 7},
    "backup.existingSecret": "bucket",
}
OF_VOLUMES = {"task-queue", "trajectory-store", "learner", "weight-distribution", "admission"}


def test_restore_fills_each_volume_before_its_service_and_before_all_other_containers() -> None:
    values = {**RESTORE, "podDefaults.initContainers": [{"name": "own", "image": "own"}]}
    objects = render(values=values)
    filled = {
        name: pod["spec"]["initContainers"][0]
        for name, pod in own_pods(objects).items()
        if pod["spec"]["initContainers"][0]["name"] == "restore"
    }
    assert filled.keys() == OF_VOLUMES == {each.replace("_", "-") for each in ON_VOLUMES}
    for name, container in filled.items():
        command, service, *options = container["args"]
        assert command in COMMANDS
        assert service == name.replace("-", "_")
        assert options[:2] == ["--from=s3://bucket/runs", "--number=7"]
        assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert mounts["/data"] == "data"
        assert FOLDER_DEFAULT not in mounts
    assert backup_containers(objects) == []


def test_restore_opens_the_bucket_to_the_pods_with_volumes_alone() -> None:
    objects = render(values={**RESTORE, "admission.kubernetes.enabled": False})
    reaching = {
        name
        for name in own_pods(objects)
        if beyond_the_release(objects, name) == [{"ports": [{"port": 443}]}]
    }
    assert reaching == OF_VOLUMES


def test_release_without_a_restore_has_no_container_for_it() -> None:
    assert not any(each["name"] == "restore" for _, pod in pods(render()) for each in containers(pod))
