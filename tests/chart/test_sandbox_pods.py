"""Pods for model-written code: what the chart adds for them, where, and only when the run file chooses them."""

import json
from typing import Any

import msgspec
import pytest

from tests.chart.rendering import environment, named, needs_helm, of_kind, own_pods, refusal, render
from tidegate.environment.sandbox.pods import rbac
from tidegate.environment.sandbox.pods.objects import Owner

pytestmark = [pytest.mark.chart, needs_helm]
CHOSEN: dict[str, Any] = {
    "run.environment.isolation": {"kind": "pods", "namespace": "sandboxes", "runtime_class": "gvisor"}
}
API_SERVER = [{"port": 443}, {"port": 6443}]


def test_environment_may_do_what_it_declares_in_the_sandboxes_namespace_only() -> None:
    objects = render(values=CHOSEN)
    role, binding = named(objects, "Role", "t-sandbox"), named(objects, "RoleBinding", "t-sandbox")
    assert role["rules"] == json.loads(msgspec.json.encode(rbac.rules()))
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "sandboxes"
    assert binding["roleRef"]["name"] == "t-sandbox"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "t-environment", "namespace": "space"}]
    in_release = [
        each for each in of_kind(objects, "Role", "RoleBinding") if each is not role and each is not binding
    ]
    assert "t-environment" not in json.dumps(in_release)


def test_no_traffic_reaches_or_leaves_sandbox_pods() -> None:
    for enabled in (True, False):
        policy = named(
            render(values={**CHOSEN, "networkPolicy.enabled": enabled}), "NetworkPolicy", "t-sandbox"
        )
        assert policy["metadata"]["namespace"] == "sandboxes"
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert not {"ingress", "egress"} & set(policy["spec"])
        selected = policy["spec"]["podSelector"]["matchLabels"]
        assert selected.items() <= Owner("t", "worker", "life").labels().items()


def test_only_environments_with_sandbox_pods_have_a_token_and_reach_the_api_server() -> None:
    for values, chosen in (({}, False), (CHOSEN, True)):
        objects = render(values=values)
        pod = own_pods(objects)["environment"]
        assert pod["spec"]["automountServiceAccountToken"] is chosen
        assert ("TIDEGATE_SANDBOX_IMAGE" in environment(pod)) is chosen
        egress = named(objects, "NetworkPolicy", "t-environment")["spec"]["egress"]
        assert ({"ports": API_SERVER} in egress) is chosen
        names = {each["metadata"]["name"] for each in objects}
        assert ("t-sandbox" in names) is chosen
    pod = own_pods(render(values=CHOSEN))["environment"]
    assert environment(pod)["TIDEGATE_SANDBOX_IMAGE"] == pod["spec"]["containers"][0]["image"]
    assert environment(pod)["TIDEGATE_RELEASE"] == "t"


def test_namespace_of_the_release_is_refused() -> None:
    own = {"kind": "pods", "namespace": "space", "runtime_class": ""}
    assert "may read its Secrets" in refusal({"run.environment.isolation": own})


@pytest.mark.parametrize("missing", ["namespace", "runtime_class"])
def test_nothing_is_assumed_about_namespace_and_runtime(missing: str) -> None:
    isolation = {key: value for key, value in CHOSEN["run.environment.isolation"].items() if key != missing}
    assert missing in refusal({"run.environment.isolation": isolation})
