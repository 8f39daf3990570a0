"""`ui.enabled` in a release: a page that reads records and reaches nothing else."""

from typing import Any

import pytest

from tests.chart.rendering import containers, named, needs_helm, pods, refusal, render
from tests.chart.test_network_policies import beyond_the_release
from tidegate.cli.app import build
from tidegate.cli.ui.command import PORT, TOKEN_VARIABLE
from tidegate.cli.ui.run_copy import SERVICES
from tidegate.launch.operator_credential import FOLDER_DEFAULT
from tidegate.runtime.call_credentials import DIGESTS_FILE, token_file

pytestmark = [pytest.mark.chart, needs_helm]

VALUES: dict[str, Any] = {"ui.enabled": True, "ui.existingSecret": "page"}


def test_release_without_the_page_has_nothing_of_it() -> None:
    assert not [each for each in render() if each["metadata"]["name"].endswith("-ui")]


def test_the_page_has_its_own_credential_and_token_and_no_right_in_the_cluster() -> None:
    objects = render(values=VALUES)
    pod = named(objects, "Deployment", "t-ui")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [token] = [each for each in container["env"] if each["name"] == TOKEN_VARIABLE]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "page", "key": "token"}}
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    items = volumes[mounts[FOLDER_DEFAULT]]["secret"]["items"]
    assert {each["key"] for each in items} == {DIGESTS_FILE, token_file("ui")}
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    others = [each for _, other in pods(objects) for each in containers(other) if each["name"] != "ui"]
    assert not any(each["name"] == TOKEN_VARIABLE for other in others for each in other.get("env", ()))
    assert named(objects, "Service", "t-ui")["spec"]["ports"][0]["port"] == PORT


def test_it_reaches_the_services_whose_records_it_copies_and_nothing_beyond_the_release() -> None:
    egress = [{"cidr": "10.1.0.0/16", "port": 443}]
    objects = render(values={**VALUES, "networkPolicy.externalEgress": egress})
    policy = named(objects, "NetworkPolicy", "t-ui")["spec"]
    reached = {
        to["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in policy["egress"]
        for to in rule["to"]
    }
    assert reached == {service.replace("_", "-") for service in SERVICES}
    assert beyond_the_release(objects, "ui") == []
    assert "ingress" not in policy
    opened = render(values={**VALUES, "networkPolicy.uiFrom": {"name": "ingress"}})
    assert named(opened, "NetworkPolicy", "t-ui")["spec"]["ingress"] == [
        {"from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}], "ports": [{"port": PORT}]}
    ]


def test_it_has_a_certificate_where_services_ask_for_one() -> None:
    objects = render(values={**VALUES, "tls.selfSigned.enabled": True})
    pod = named(objects, "Deployment", "t-ui")["spec"]["template"]["spec"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "tls"]
    assert volume["secret"]["secretName"] == "t-ui-tls"
    [container] = pod["containers"]
    assert {"name": "TIDEGATE_TLS_DIR", "value": "/etc/tidegate-tls"} in container["env"]


def test_a_page_without_a_token_is_refused() -> None:
    assert "would be open to all pods" in refusal({"ui.enabled": True})


TRACKED: dict[str, Any] = {
    **VALUES,
    "run.track": ["tensorboard", {"tracker": "mlflow", "to": "https://mlflow.example.com:8443"}],
    "companions.existingSecret": "mlflow",
}


def test_a_tracker_is_a_container_that_has_the_copy_and_none_of_the_runs_credentials() -> None:
    objects = render(values=TRACKED)
    pod = named(objects, "Deployment", "t-ui")["spec"]["template"]["spec"]
    _, board, mlflow = pod["containers"]
    assert board["args"] == [
        "track", "/copy/cartpole-t", "--with=tensorboard", "--to=.tidegate/tensorboard", "--stay",
    ]  # fmt: skip
    assert "--to=https://mlflow.example.com:8443" in mlflow["args"]
    run = build(["track"]).commands["track"]
    for each in (board, mlflow):
        run.make_context("track", list(each["args"][1:]))
        assert {mount["name"] for mount in each["volumeMounts"]} & {"config", "credentials", "tls"} == set()
        assert each["envFrom"] == [{"secretRef": {"name": "mlflow"}}]
        assert each["image"] == "tidegate-trackers:0.1.0"
        assert each["securityContext"]["readOnlyRootFilesystem"]
    claims = [each["persistentVolumeClaim"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert claims == [
        {"claimName": named(objects, "PersistentVolumeClaim", "t-companions")["metadata"]["name"]}
    ]


def test_the_pods_network_opens_for_the_servers_of_its_trackers_alone() -> None:
    assert beyond_the_release(render(values=TRACKED), "ui") == [{"ports": [{"port": 8443}]}]
    folders = {**VALUES, "run.track": ["tensorboard", "mlflow"]}
    assert beyond_the_release(render(values=folders), "ui") == []


CALLBACKS: dict[str, Any] = {
    **VALUES,
    "run.callbacks": ["my_callbacks.py:Notify"],
    "files.contents": [{"path": "my_callbacks.py", "text": "class Notify: ..."}],
}


def test_a_callback_is_a_container_that_has_the_copy_and_the_files_of_the_run() -> None:
    objects = render(values=CALLBACKS)
    pod = named(objects, "Deployment", "t-ui")["spec"]["template"]["spec"]
    page, callback = pod["containers"]
    assert callback["name"] == "callback-0"
    name, *arguments = callback["args"]
    build([name]).commands[name].make_context(name, list(arguments))
    mounts = {mount["name"]: mount["mountPath"] for mount in callback["volumeMounts"]}
    assert mounts["files"] == "/etc/tidegate-files"
    assert not {"config", "credentials", "tls"} & set(mounts)
    assert "files" not in {mount["name"] for mount in page["volumeMounts"]}
    [files] = [each["configMap"]["name"] for each in pod["volumes"] if each["name"] == "files"]
    assert "my_callbacks.py" in str(named(objects, "ConfigMap", files)["data"])


def test_callbacks_reach_what_the_operator_names() -> None:
    assert beyond_the_release(render(values=CALLBACKS), "ui") == []
    egress = [{"cidr": "10.1.0.0/16", "port": 443}]
    assert beyond_the_release(render(values={**CALLBACKS, "networkPolicy.externalEgress": egress}), "ui") == [
        {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}
    ]
