"""What the chart's accounts may do at the API server: exactly what is rendered, and what a real server refuses them."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from tests.chart.rendering import (
    Manifest,
    documents,
    named,
    needs_cluster,
    needs_helm,
    of_kind,
    render,
    render_text,
    run,
)
from tidegate.admission.kubernetes import rbac
from tidegate.core.scaling import Mode

pytestmark = [pytest.mark.chart, needs_helm]
POOLS = {"actor.pools.spot.nodeSelector": {"pool": "spot"}}


def rules_of(objects: list[Manifest], name: str) -> list[Manifest]:
    return list(named(objects, "Role", name)["rules"])


@pytest.mark.parametrize("mode", ["observe", "advise", "external", "controller"])
@pytest.mark.parametrize("deletion_cost", [True, False])
@pytest.mark.parametrize("crd", [True, False])
def test_admission_may_do_what_it_declares(*, mode: Mode, deletion_cost: bool, crd: bool) -> None:
    values = {
        **POOLS,
        "run.admission.scaling": {"mode": mode, "deletion_cost": deletion_cost},
        "crd.enabled": crd,
    }
    wanted = rbac.rules(
        mode=mode,
        deletion_cost=deletion_cost,
        deployments=["t-actor", "t-actor-spot"],
        lease="t-admission",
        run="t" if crd else "",
    )
    assert rules_of(render(values=values), "t-admission") == json.loads(msgspec.json.encode(wanted))


def test_no_rule_is_wide() -> None:
    values = {**POOLS, "run.admission.scaling.mode": "controller", "crd.enabled": True}
    objects = render("production-ha", values)
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    for role in of_kind(objects, "Role"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"delete", "deletecollection", "escalate", "impersonate", "bind"} & set(rule["verbs"])
            if "secrets" in rule["resources"]:
                assert rule["resourceNames"] == ["t-nats-auth"]
                assert rule["verbs"] == ["get", "patch"]


def test_only_two_accounts_are_bound_to_anything() -> None:
    bound = {
        subject["name"]: binding["roleRef"]["name"]
        for binding in of_kind(render(), "RoleBinding")
        for subject in binding["subjects"]
    }
    assert bound == {"t-admission": "t-admission", "t-credentials": "t-credentials"}


def test_without_access_to_kubernetes_admission_has_no_role() -> None:
    objects = render(values={"admission.kubernetes.enabled": False, "nats.auth.existingSecret": "mine"})
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
        ("list", "pods"),
        ("patch", "pods"),
        ("get", "deployments.apps/t-actor"),
        ("update", "leases.coordination.k8s.io/t-admission"),
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
        ("get", "configmaps"),
        ("delete", "pods"),
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
def test_server_lets_the_credentials_job_fill_one_secret_only(granted: str) -> None:
    account = "t-credentials"
    assert may(granted, account, "get", "secrets/t-nats-auth")
    assert may(granted, account, "patch", "secrets/t-nats-auth")
    for verb, resource in (
        ("get", "secrets/another"),
        ("list", "secrets"),
        ("create", "secrets"),
        ("delete", "secrets/t-nats-auth"),
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
