"""`ui.enabled` in a release: a page that reads records and reaches nothing else."""

from typing import Any

import pytest

from tests.chart.rendering import containers, named, needs_helm, pods, refusal, render
from tests.chart.test_network_policies import beyond_the_release
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
