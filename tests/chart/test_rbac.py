"""What the chart's accounts may do at the API server: exactly what is rendered, and what a real server refuses them."""

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from tests.chart.rendering import (
    SERVICES,
    Manifest,
    documents,
    environment,
    named,
    needs_cluster,
    needs_helm,
    of_kind,
    own_pods,
    refusal,
    render,
    render_text,
    run,
)
from tidegate.admission.kubernetes import rbac
from tidegate.admission.kubernetes.access import LearnerKind
from tidegate.admission.kubernetes.leader_label import LABEL
from tidegate.core.scaling import Mode

pytestmark = [pytest.mark.chart, needs_helm]
POOLS = {"actor.pools.spot.nodeSelector": {"pool": "spot"}}
RANKS = {"admission.kubernetes.rankActors": True}
PODS = {"admission.replicas": 2}
POLICY_ATTEMPTS = 120
COST = "controller.kubernetes.io/pod-deletion-cost"


def observing_rules(**more: Any) -> list[Manifest]:
    """The rules of an installation that leaves the actors' scale and rank alone."""
    rules = rbac.rules(
        mode="observe", deletion_cost=False, deployments=["t-actor"], lease="t-admission-leader", **more
    )
    return list(json.loads(msgspec.json.encode(rules)))


def rules_of(objects: list[Manifest], name: str) -> list[Manifest]:
    return list(named(objects, "Role", name)["rules"])


@pytest.mark.parametrize("mode", ["observe", "advise", "external", "controller"])
@pytest.mark.parametrize("deletion_cost", [True, False])
@pytest.mark.parametrize("crd", [True, False])
def test_admission_may_do_what_it_declares(*, mode: Mode, deletion_cost: bool, crd: bool) -> None:
    values = {
        **POOLS,
        "run.admission.scaling.mode": mode,
        "admission.kubernetes.rankActors": deletion_cost,
        "crd.enabled": crd,
    }
    wanted = rbac.rules(
        mode=mode,
        deletion_cost=deletion_cost,
        deployments=["t-actor", "t-actor-spot"],
        lease="t-admission-leader",
        run="t" if crd else "",
        ends_run=True,
        learner="t-learner",
    )
    assert rules_of(render(values=values), "t-admission") == json.loads(msgspec.json.encode(wanted))


def test_admission_scales_nothing_where_it_may_not_end_the_run() -> None:
    without = render(values={"admission.kubernetes.endsRun": False})
    assert rules_of(without, "t-admission") == observing_rules()
    assert "TIDEGATE_LEARNER" not in environment(own_pods(without)["admission"])
    assert environment(own_pods(render())["admission"])["TIDEGATE_LEARNER"] == "t-learner"


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
@pytest.mark.parametrize("queue", ["", "team"])
def test_admission_needs_no_access_to_a_learner_that_ends_as_a_job(kind: LearnerKind, queue: str) -> None:
    objects = render(values={"learner.kind": kind, "kueue.queueName": queue})
    assert rules_of(objects, "t-admission") == observing_rules(ends_run=True)
    assert environment(own_pods(objects)["admission"])["TIDEGATE_LEARNER"] == "t-learner"
    assert environment(own_pods(objects)["admission"])["TIDEGATE_LEARNER_KIND"] == kind
    assert "TIDEGATE_LEARNER_KIND" not in environment(own_pods(render())["admission"])


def test_pods_are_patched_only_under_a_policy_that_limits_it() -> None:
    by_default = render()
    assert not of_kind(by_default, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert "TIDEGATE_RANK_ACTORS" not in environment(own_pods(by_default)["admission"])
    ranking = render(values=RANKS)
    (policy,) = of_kind(ranking, "ValidatingAdmissionPolicy")
    (binding,) = of_kind(ranking, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"] == "space-t-admission"
    assert binding["spec"]["validationActions"] == ["Deny"]
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert environment(own_pods(ranking)["admission"])["TIDEGATE_RANK_ACTORS"] == "1"
    switched_off = render(values={**RANKS, "run.admission.scaling.deletion_cost": False})
    assert not of_kind(switched_off, "ValidatingAdmissionPolicy")
    assert "set admission.kubernetes.rankActors" in refusal({"run.admission.scaling.deletion_cost": True})


def test_several_pods_of_admission_may_label_themselves_under_a_policy_that_limits_it() -> None:
    objects = render(values=PODS)
    pods = ["t-admission-0", "t-admission-1"]
    assert rules_of(objects, "t-admission") == observing_rules(ends_run=True, learner="t-learner", pods=pods)
    (policy,) = of_kind(objects, "ValidatingAdmissionPolicy")
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert "admission.replicas: ValidatingAdmissionPolicy needs Kubernetes 1.30" in refusal(
        PODS, kubernetes="1.29.0"
    )
    assert "its pods could not agree on a leader" in refusal({**PODS, "admission.kubernetes.enabled": False})


def test_no_rule_is_wide() -> None:
    values = {**POOLS, **PODS, "run.admission.scaling.mode": "controller", "crd.enabled": True}
    objects = render("production-ha", values)
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    for role in of_kind(objects, "Role"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"delete", "deletecollection", "escalate", "impersonate", "bind"} & set(rule["verbs"])
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["get", "patch"]
    certified = {"t-authority", *(f"t-{name}-tls" for name in (*SERVICES, "nats", "streams", "test"))}
    (of_credentials,) = rules_of(objects, "t-credentials")
    (of_certificates,) = rules_of(objects, "t-certificates")
    assert of_credentials["resourceNames"] == ["t-nats-auth", "t-call-auth"]
    assert set(of_certificates["resourceNames"]) == certified
    bound = {role["metadata"]["name"] for role in of_kind(objects, "Role") if "secrets" in str(role["rules"])}
    assert bound == {"t-credentials", "t-certificates"}


def test_only_two_accounts_are_bound_to_anything() -> None:
    bound = {
        subject["name"]: binding["roleRef"]["name"]
        for binding in of_kind(render(), "RoleBinding")
        for subject in binding["subjects"]
    }
    assert bound == {"t-admission": "t-admission", "t-credentials": "t-credentials"}


def test_without_access_to_kubernetes_admission_has_no_role() -> None:
    own = {"nats.auth.existingSecret": "mine", "calls.existingSecret": "tokens"}
    objects = render(values={"admission.kubernetes.enabled": False, **own})
    assert not of_kind(objects, "Role", "RoleBinding")


@pytest.fixture(scope="module")
def granted() -> Iterator[str]:
    """A namespace with the accounts and Roles of a release, and nothing else."""
    space = f"chart-rbac-{uuid.uuid4().hex[:8]}"
    kinds = ("ServiceAccount", "Role", "RoleBinding")
    objects = of_kind(documents(render_text(namespace=space)), *kinds)
    assert run("kubectl", "create", "namespace", space).returncode == 0
    try:
        applied = run("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        assert applied.returncode == 0, applied.stderr
        yield space
    finally:
        run("kubectl", "delete", "namespace", space, "--wait=false")


def may(space: str, account: str, verb: str, resource: str, *, within: str | None = None) -> bool:
    """The server's authorisation of an account; ``resource`` is TYPE, TYPE.GROUP or TYPE/NAME."""
    done = run(
        "kubectl",
        "auth",
        "can-i",
        verb,
        resource,
        f"--namespace={within or space}",
        f"--as=system:serviceaccount:{space}:{account}",
        "--quiet",
    )
    return done.returncode == 0


@pytest.mark.cluster
@needs_cluster
def test_server_grants_admission_what_observing_needs(granted: str) -> None:
    for verb, resource in (
        ("get", "deployments.apps/t-actor"),
        ("update", "leases.coordination.k8s.io/t-admission-leader"),
        ("create", "events.events.k8s.io"),
    ):
        assert may(granted, "t-admission", verb, resource), f"{verb} {resource}"


@pytest.mark.cluster
@needs_cluster
@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("get", "secrets"),
        ("list", "secrets"),
        ("get", "secrets/t-nats-auth"),
        ("get", "secrets/t-call-auth"),
        ("get", "configmaps"),
        ("list", "pods"),
        ("delete", "pods"),
        ("patch", "pods"),
        ("create", "pods"),
        ("create", "pods/exec"),
        ("patch", "deployments.apps/t-actor"),
        ("patch", "deployments.apps/t-actor/scale"),
        ("get", "deployments.apps/another"),
        ("update", "leases.coordination.k8s.io/another"),
        ("patch", "nodes"),
        ("create", "roles.rbac.authorization.k8s.io"),
    ],
    ids=str,
)
def test_server_refuses_admission_the_rest(granted: str, verb: str, resource: str) -> None:
    assert not may(granted, "t-admission", verb, resource)


@pytest.mark.cluster
@needs_cluster
def test_server_refuses_admission_another_namespace(granted: str) -> None:
    for verb, resource in (("list", "pods"), ("patch", "pods"), ("create", "events.events.k8s.io")):
        assert not may(granted, "t-admission", verb, resource, within="default")


@pytest.mark.cluster
@needs_cluster
def test_server_lets_the_credentials_job_fill_two_secrets_only(granted: str) -> None:
    account = "t-credentials"
    for secret in ("t-nats-auth", "t-call-auth"):
        assert may(granted, account, "get", f"secrets/{secret}")
        assert may(granted, account, "patch", f"secrets/{secret}")
    for verb, resource in (
        ("get", "secrets/another"),
        ("list", "secrets"),
        ("create", "secrets"),
        ("delete", "secrets/t-nats-auth"),
        ("delete", "secrets/t-call-auth"),
        ("list", "pods"),
    ):
        assert not may(granted, account, verb, resource), f"{verb} {resource}"


@pytest.mark.cluster
@needs_cluster
@pytest.mark.parametrize("account", ["t-actor", "t-environment", "t-learner", "t-nats", "t-trajectory-store"])
def test_server_grants_other_accounts_nothing(granted: str, account: str) -> None:
    review: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": granted},
    }
    asked = run(
        "kubectl",
        "create",
        "-f",
        "-",
        "-o",
        "json",
        "--validate=false",
        f"--as=system:serviceaccount:{granted}:{account}",
        # Groups of an account at the server, besides its name.
        "--as-group=system:authenticated",
        "--as-group=system:serviceaccounts",
        stdin=json.dumps(review),
    )
    assert asked.returncode == 0, asked.stderr
    rules = json.loads(asked.stdout)["status"]["resourceRules"]
    # Every account may request its own permissions.
    assert {group for rule in rules for group in rule["apiGroups"]} <= {
        "authorization.k8s.io",
        "authentication.k8s.io",
    }


def reading_pods(space: str) -> list[Manifest]:
    """Lets admission's account get pods: `kubectl patch` reads a pod before it patches it, admission does not."""
    api = "rbac.authorization.k8s.io"
    metadata = {"name": "reading-pods", "namespace": space}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    role = {"apiGroup": api, "kind": "Role", "name": "reading-pods"}
    account = {"kind": "ServiceAccount", "name": "t-admission", "namespace": space}
    return [
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [account],
        },
    ]


@pytest.fixture(scope="module")
def ranking() -> Iterator[str]:
    """A namespace with admission's account, its policy, an actor's pod, one of its own and another; nothing runs."""
    space = f"rank-{uuid.uuid4().hex[:8]}"
    objects = [
        each
        for each in documents(render_text(values={**RANKS, **PODS}, namespace=space))
        if each["kind"].startswith("ValidatingAdmissionPolicy")
        or (
            each["kind"] in ("ServiceAccount", "Role", "RoleBinding")
            and each["metadata"]["name"] == "t-admission"
        )
    ]
    try:
        assert run("kubectl", "create", "namespace", space).returncode == 0
        for name, component in (("actor", "actor"), ("t-admission-1", "admission"), ("other", "learner")):
            labels = {"app.kubernetes.io/instance": "t", "app.kubernetes.io/component": component}
            container = {"name": "c", "image": "example.invalid/none"}
            pod = {
                "containers": [container],
                "schedulingGates": [{"name": "tidegate.dev/never"}],
                # A merge patch of the image replaces the container, which must not lose a mount by it.
                "automountServiceAccountToken": False,
            }
            metadata = {"name": name, "namespace": space, "labels": labels, "annotations": {"a": "1"}}
            objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
        objects += reading_pods(space)
        done = run("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        assert done.returncode == 0, done.stderr
        yield space
    finally:
        policy = f"{space}-t-admission"
        run("kubectl", "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", policy)
        run("kubectl", "delete", "namespace", space, "--wait=false")


def patched(space: str, pod: str, metadata: Manifest, **also: Any) -> str:
    """The server's error for a patch by admission's account; empty where it was accepted."""
    body = json.dumps({"metadata": metadata, **also})
    account = f"--as=system:serviceaccount:{space}:t-admission"
    done = run(
        "kubectl", "patch", "pod", pod, f"--namespace={space}", account, "--type=merge", f"--patch={body}"
    )
    return done.stderr if done.returncode else ""


@pytest.mark.cluster
@needs_cluster
def test_server_lets_admission_write_the_deletion_cost_of_its_actors_and_nothing_else(ranking: str) -> None:
    cost = {"annotations": {COST: "10", "tidegate.dev/pod-deletion-cost": "10"}}
    for _ in range(POLICY_ATTEMPTS):  # a policy takes effect some time after it was created
        if "only its release's actors and its own pods" in patched(ranking, "other", cost):
            break
        time.sleep(1.0)
    assert patched(ranking, "actor", cost) == ""
    assert patched(ranking, "actor", {"annotations": {COST: "20"}}) == ""
    assert patched(ranking, "actor", {"annotations": {COST: None}}) == ""
    image = {"spec": {"containers": [{"name": "c", "image": "example.invalid/other"}]}}
    for metadata, also in (
        ({"annotations": {"a": "2"}}, {}),
        ({"annotations": {"a": None}}, {}),
        ({"annotations": {"b": "1"}}, {}),
        ({"labels": {"app.kubernetes.io/component": "learner"}}, {}),
        ({"finalizers": ["tidegate.dev/held"]}, {}),
        ({}, image),
    ):
        assert "only the annotations of the deletion cost" in patched(ranking, "actor", metadata, **also)
    for metadata, also in ((cost, {}), ({}, image)):
        assert "only its release's actors" in patched(ranking, "other", metadata, **also)


@pytest.mark.cluster
@needs_cluster
def test_server_lets_admission_label_its_own_pods_as_the_leader_and_nothing_else(ranking: str) -> None:
    leads = {"labels": {LABEL: "true"}}
    for _ in range(POLICY_ATTEMPTS):
        if "only its release's actors and its own pods" in patched(ranking, "other", leads):
            break
        time.sleep(1.0)
    assert patched(ranking, "t-admission-1", leads) == ""
    assert patched(ranking, "t-admission-1", {"labels": {LABEL: None}}) == ""
    image = {"spec": {"containers": [{"name": "c", "image": "example.invalid/other"}]}}
    for pod, metadata, also in (
        ("t-admission-1", {"labels": {"app.kubernetes.io/component": "learner"}}, {}),
        ("t-admission-1", {"annotations": {COST: "10"}}, {}),
        ("t-admission-1", {}, image),
        ("actor", leads, {}),
    ):
        assert "may change only the annotations" in patched(ranking, pod, metadata, **also)
