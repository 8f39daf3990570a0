"""The chart of the operator: its permissions cover every release, its configuration is one that the operator reads."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
import yaml

from tests.chart.rendering import (
    CRD_APIS,
    EVERYTHING,
    PRESETS,
    ROOT,
    Manifest,
    containers,
    documents,
    named,
    needs_helm,
    of_kind,
    render,
    run,
)
from tidegate.operator.config import OperatorConfig, read_config
from tidegate.operator.helm import apply_command
from tidegate.operator.objects import ManagedMeta, ManagedRun, ManagedSpec, RunKey
from tidegate.operator.plans import plan_of
from tidegate.operator.rbac import rules
from tools.operator_chart import build

pytestmark = [pytest.mark.chart, needs_helm]

CHART = ROOT / "helm" / "tidegate-operator"
# The plural of each kind that a release has, with its group.
PLURALS = {"NetworkPolicy": "networkpolicies", "Issuer": "issuers"}
SELECTOR = re.compile(r"\{([^{}]*)\}")
# Cluster-wide objects, which the operator refuses to make (config.FORBIDDEN).
CLUSTER_WIDE = (
    "ClusterTrainingRuntime",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
OTHERS = {
    "certificates by cert-manager": {"tls.certManager.enabled": True},
    "a hpa": {"hpa.enabled": True},
    "an issuer and KEDA": {
        "keda.enabled": True,
        "run.admission.scaling.mode": "external",
        "networkPolicy.scalerFrom": {"name": "keda"},
        "tls.certManager.enabled": True,
    },
    "groups": {"learner.kind": "JobSet", "learner.persistence.accessModes": ["ReadWriteMany"]},
    "rules": {"rules.enabled": True, "dashboards.enabled": True},
    "controller": {"run.admission.scaling.mode": "controller", "crd.enabled": True},
    "doctor": {"doctor.enabled": True, "doctor.when": "install"},
}


def rendered(values: Mapping[str, Any] | None = None) -> list[Manifest]:
    arguments = ["operator", str(CHART), "--namespace", "system"]
    for key, value in (values or {}).items():
        arguments += ["--set-json", f"{key}={json.dumps(value)}"]
    done = run("helm", "template", *arguments)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def refused(values: Mapping[str, Any]) -> str:
    arguments = [
        part for key, value in values.items() for part in ("--set-json", f"{key}={json.dumps(value)}")
    ]
    done = run("helm", "template", "operator", str(CHART), *arguments)
    assert done.returncode != 0
    return done.stderr


def configuration(objects: list[Manifest], folder: Path) -> OperatorConfig:
    path = folder / "operator.yaml"
    path.write_text(named(objects, "ConfigMap", "operator")["data"]["operator.yaml"])
    return read_config(path)


def releases() -> Iterator[tuple[str, list[Manifest]]]:
    yield "defaults", render()
    yield "everything", render(values=EVERYTHING)
    for preset in PRESETS:
        yield preset, render(preset)
    for name, values in OTHERS.items():
        yield name, render(values=values)


def plural(thing: Manifest) -> tuple[str, str]:
    group = thing["apiVersion"].rpartition("/")[0]
    kind = str(thing["kind"])
    return group, PLURALS.get(kind, f"{kind.lower()}s")


def allowed() -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules()
        for group in rule.api_groups
        for resource in rule.resources
        for verb in rule.verbs
    }


def test_the_operator_may_make_and_remove_every_object_of_a_release() -> None:
    missing = {
        (name, *plural(thing), verb)
        for name, objects in releases()
        for thing in objects
        if thing["kind"] not in (*CLUSTER_WIDE, "TrainingRun")  # the TrainingRun is there before its release
        and "test" not in thing["metadata"].get("annotations", {}).get("helm.sh/hook", "")
        for verb in ("create", "delete", "get", "patch")
        if (*plural(thing), verb) not in allowed()
    }
    assert missing == set()


def test_the_operator_may_give_the_permissions_that_releases_give() -> None:
    """The API server refuses a Role with permissions that its maker lacks."""
    missing = {
        (name, group, resource, verb)
        for name, objects in releases()
        for role in of_kind(objects, "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if (group, resource, verb) not in allowed()
    }
    assert missing == set()


def test_no_permission_is_for_what_neither_a_release_nor_the_operator_needs() -> None:
    used = {plural(thing) for _, objects in releases() for thing in objects}
    used |= {
        (group, resource)
        for _, objects in releases()
        for role in of_kind(objects, "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    own = {
        ("", "pods/log"),
        ("tidegate.dev", "trainingruns"),
        ("tidegate.dev", "trainingruns/status"),
        ("leaderworkerset.x-k8s.io", "leaderworkersets/scale"),
    }
    given = {(group, resource) for group, resource, _ in allowed()}
    # A LeaderWorkerSet needs values of its own; a volume claim is one of a JobSet's learner.
    assert given - used - own <= {("leaderworkerset.x-k8s.io", "leaderworkersets")}


def test_no_rule_is_wide() -> None:
    for rule in rules():
        assert "*" not in [*rule.api_groups, *rule.resources, *rule.verbs]
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule.verbs)
        assert "pods/exec" not in rule.resources


def test_each_watched_namespace_has_a_role_and_nothing_is_cluster_wide() -> None:
    objects = rendered({"watch.namespaces": ["a", "b"]})
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    wanted = json.loads(msgspec.json.encode(rules()))
    roles = {
        each["metadata"]["namespace"]: each
        for each in of_kind(objects, "Role")
        if each["metadata"]["name"] == "operator"
    }
    assert set(roles) == {"a", "b"}
    assert all(role["rules"] == wanted for role in roles.values())
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "operator", "namespace": "system"}]
    lease = named(objects, "Role", "operator-lease")
    assert lease["metadata"]["namespace"] == "system"
    assert lease["rules"][0]["resourceNames"] == [named(objects, "Lease", "operator")["metadata"]["name"]]


def test_by_default_it_watches_its_own_namespace_and_all_of_them_on_demand(tmp_path: Path) -> None:
    assert configuration(rendered(), tmp_path).namespaces == ["system"]
    everywhere = rendered({"watch.all": True})
    assert configuration(everywhere, tmp_path).namespaces == []
    (role,) = of_kind(everywhere, "ClusterRole")
    assert role["rules"] == json.loads(msgspec.json.encode(rules()))
    assert "leave one of them out" in refused({"watch.all": True, "watch.namespaces": ["a"]})


def test_values_reach_the_operator_as_its_configuration(tmp_path: Path) -> None:
    quota = {"total": {"runs": 3, "gpus": 8}, "namespaces": {"research": {"gpus": 4}}}
    objects = rendered(
        {
            "config.quota": quota,
            "config.allowed": ["extraObjects"],
            "config.upgrades": "at-once",
            "config.helm": {"processes": 4},
            "runValues": {"images": {"tag": "7", "registry": "r"}},
            "telemetry.endpoint": "collector:4317",
        }
    )
    found = configuration(objects, tmp_path)
    assert found.quota.total.gpus == 8
    assert found.quota.of("research").gpus == 4
    assert (found.allowed, found.upgrades, found.helm.processes) == (["extraObjects"], "at-once", 4)
    assert found.values == {"images": {"tag": "7", "registry": "r"}}
    assert found.telemetry.otlp_endpoint == "collector:4317"
    (policy,) = of_kind(objects, "NetworkPolicy")
    assert {"ports": [{"port": 4317}]} in policy["spec"]["egress"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"config.quota": {"totall": {}}}, "totall"),
        ({"config.helm": {"processes": 0}}, "processes"),
        ({"config.namespaces": ["a"]}, "namespaces"),
        ({"watch.namespaces": ["A"]}, "watch"),
        ({"typo": 1}, "typo"),
    ],
)
def test_the_schema_refuses_typos_and_what_is_out_of_range(values: Mapping[str, Any], words: str) -> None:
    assert words in refused(values)


def test_its_pod_is_restricted_and_a_change_of_its_configuration_replaces_it() -> None:
    before, after = (
        named(rendered(values), "Deployment", "operator")
        for values in ({}, {"config.quota": {"total": {"runs": 1}}})
    )
    pod = before["spec"]["template"]["spec"]
    (container,) = containers({"spec": pod})
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["resources"]["limits"]["memory"]
    checksums = [
        each["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for each in (before, after)
    ]
    assert checksums[0] != checksums[1]


def test_kubernetes_accepts_every_object() -> None:
    objects = rendered({"watch.namespaces": ["a"]}) + rendered(
        {"watch.all": True, "telemetry.endpoint": "c:4317"}
    )
    for thing in objects:
        kubernetes_validate.validate(thing, "1.34", strict=True)


def test_generated_files_are_those_of_their_sources() -> None:
    behind = [str(path) for path, text in build().items() if path.read_text(encoding="utf-8") != text]
    assert not behind, "run `make chart`"


def example() -> ManagedRun:
    text = (CHART / "examples" / "cartpole.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    spec = msgspec.convert(document["spec"], ManagedSpec)
    return ManagedRun(ManagedMeta(name=document["metadata"]["name"], namespace="rl"), spec)


def test_the_example_is_a_run_that_the_chart_takes(tmp_path: Path) -> None:
    plan = plan_of(example(), OperatorConfig(), chart="0.1.0")
    assert plan.problem == ""
    values = tmp_path / "values.json"
    values.write_text(json.dumps(plan.values))
    apis = [part for api in CRD_APIS for part in ("--api-versions", api)]
    done = run(
        "helm", "template", "cartpole", str(ROOT / "helm/tidegate"), "-n", "rl", "-f", str(values), *apis
    )
    assert done.returncode == 0, done.stderr
    objects = documents(done.stdout)
    assert not of_kind(objects, "TrainingRun"), "the operator's is there"
    admission = named(objects, "StatefulSet", "cartpole-admission")["spec"]["template"]["spec"]["containers"][
        0
    ]
    assert {"name": "TIDEGATE_TRAINING_RUN", "value": "cartpole"} in admission["env"]
    scaled = {(each.kind, each.name) for each in plan.scaled}
    assert scaled <= {(each["kind"], each["metadata"]["name"]) for each in objects}
    cluster = json.loads(named(objects, "ConfigMap", "cartpole-run")["data"]["cluster.yaml"])
    assert cluster["run_id"] == plan.run_id


def test_helm_knows_the_options_that_the_operator_gives() -> None:
    command = apply_command(OperatorConfig().helm, RunKey("rl", "cartpole"), values=Path("values.json"))
    known = run("helm", "upgrade", "--help").stdout
    assert [each for each in command if each.startswith("--") and each.partition("=")[0] not in known] == []
    removal = run("helm", "uninstall", "--help").stdout
    assert "--ignore-not-found" in removal
    assert "--cascade" in removal


def test_two_runs_of_one_name_share_no_series_no_alert_and_no_board() -> None:
    """In one Prometheus and one Grafana: ids, recorded series, alerts and boards name namespace and run."""
    boards: dict[str, set[str]] = {}
    for namespace in ("team-a", "team-b"):
        spec = ManagedSpec(
            run={
                "run": "cartpole",
                "workload": {"kind": "segments", "env": "CartPole-v1"},
                "policy": {"kind": "mlp"},
            },
            values={"rules": {"enabled": True}, "dashboards": {"enabled": True}},
        )
        plan = plan_of(
            ManagedRun(ManagedMeta(name="rl", namespace=namespace), spec), OperatorConfig(), chart="1"
        )
        values = copy.deepcopy(plan.values)
        objects = render(values=values, release="rl", namespace=namespace)
        expressions = [
            rule["expr"]
            for each in of_kind(objects, "PrometheusRule")
            for group in each["spec"]["groups"]
            for rule in group["rules"]
        ]
        selectors = [each for expression in expressions for each in SELECTOR.findall(expression)]
        assert len(selectors) >= len(expressions) > 100
        for selector in selectors:
            assert f'namespace="{namespace}"' in selector
            # Series of kube-state-metrics and the kubelet are found by the names of pods.
            assert f'tidegate_run_id="{plan.run_id}"' in selector or "(rl)-(" in selector
        boards[namespace] = {
            json.loads(text)["uid"]
            for each in of_kind(objects, "ConfigMap")
            for key, text in each["data"].items()
            if key.endswith(".json")
        }
    assert boards["team-a"]
    assert not boards["team-a"] & boards["team-b"]
