"""Allowed network flows: the rendered policies against this table, written for reviewers."""

import itertools
from typing import Any

import pytest

from tests.chart.rendering import SERVICES, WITH_INFERENCE, Manifest, named, needs_helm, of_kind, render

pytestmark = [pytest.mark.chart, needs_helm]

GRPC, BROKER, ROUTES, OTLP = 7700, 4222, 6222, 4317
ANY = 0
# Caller, called, port. What is not here is refused.
BETWEEN_SERVICES = {
    ("actor", "environment", GRPC),  # evaluations, tools, what the environment of segments observes
    ("actor", "trajectory-store", GRPC),  # uploads of what no message holds
    ("actor", "weight-distribution", GRPC),  # tensors
    ("environment", "trajectory-store", GRPC),  # uploads
    ("learner", "environment", GRPC),  # what the environment of segments observes
    ("learner", "trajectory-store", GRPC),  # batches, commits
    ("learner", "weight-distribution", GRPC),  # versions
    ("learner", "learner", ANY),  # rendezvous and collectives, on ports of torch's choice
    ("task-queue", "trajectory-store", GRPC),  # outcomes
    # `kubectl exec` of status, audit and explain; of pause, resume and await, which call its own Service.
    ("admission", "admission", GRPC),
    ("admission", "task-queue", GRPC),
    ("admission", "trajectory-store", GRPC),
    ("admission", "learner", GRPC),
    ("admission", "weight-distribution", GRPC),
}
# Of releases with the optional service.
OF_INFERENCE = {
    ("actor", "inference", GRPC),  # steps
    ("inference", "environment", GRPC),  # what the environment of segments observes
    ("inference", "weight-distribution", GRPC),  # tensors
    ("inference", "nats", BROKER),
    ("test", "inference", GRPC),
}
OF_HELM_TEST = {("test", service, GRPC) for service in SERVICES if service != "actor"}
TO_BROKER = {(service, "nats", BROKER) for service in (*SERVICES, "test", "streams")}
TO_COLLECTOR = {(service, "collector", OTLP) for service in (*SERVICES, "test")}
STANDARD = BETWEEN_SERVICES | OF_HELM_TEST | TO_BROKER
COMPONENTS = (*SERVICES, "test", "nats", "credentials", "streams")
API_SERVER = [{"port": 443}, {"port": 6443}]

Flow = tuple[str, str, int]


def labels_of(component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "tidegate",
        "app.kubernetes.io/instance": "t",
        "app.kubernetes.io/component": component,
    }


def chosen(selector: dict[str, Any], component: str) -> bool:
    return selector.get("matchLabels", {}).items() <= labels_of(component).items()


def allows(rules: list[Manifest] | None, side: str, peer: str, port: int) -> bool:
    """Whether one of a policy's rules lets ``peer`` through; rules for other namespaces and addresses do not."""
    return any(
        any("podSelector" in each and chosen(each["podSelector"], peer) for each in rule.get(side, []))
        and ("ports" not in rule or any(each["port"] == port for each in rule["ports"]))
        for rule in rules or []
    )


def permitted(objects: list[Manifest], caller: str, called: str, port: int) -> bool:
    """Decide as a cluster: the caller's egress and the callee's ingress policies must allow the flow."""
    policies = [each["spec"] for each in of_kind(objects, "NetworkPolicy")]
    out = [each for each in policies if chosen(each["podSelector"], caller)]
    into = [each for each in policies if chosen(each["podSelector"], called)]
    assert out
    assert into
    return any(allows(each.get("egress"), "to", called, port) for each in out) and any(
        allows(each.get("ingress"), "from", caller, port) for each in into
    )


def flows(objects: list[Manifest], components: tuple[str, ...]) -> set[Flow]:
    """Every flow between two components that the policies let through; an unknown port represents all ports."""
    found: set[Flow] = set()
    for caller, called in itertools.product(components, repeat=2):
        if permitted(objects, caller, called, 50_000):
            found.add((caller, called, ANY))
            continue
        for port in (GRPC, BROKER, ROUTES, OTLP, 8222, 9464, 29400):
            if permitted(objects, caller, called, port):
                found.add((caller, called, port))
    return found


def test_flows_between_services_are_exactly_those_of_the_table() -> None:
    assert flows(render(), COMPONENTS) == STANDARD


def test_optional_service_adds_its_own_flows() -> None:
    assert flows(render(values=WITH_INFERENCE), (*COMPONENTS, "inference")) == STANDARD | OF_INFERENCE


def test_built_in_collector_and_three_brokers_add_their_own_flows() -> None:
    objects = render(values={"collector.mode": "builtin", "nats.replicas": 3})
    assert flows(objects, (*COMPONENTS, "collector")) == STANDARD | TO_COLLECTOR | {("nats", "nats", ROUTES)}


def test_every_pod_of_the_release_is_denied_first_and_may_resolve_names() -> None:
    deny = named(render(), "NetworkPolicy", "t-default-deny")["spec"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    ports = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    resolver = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    assert deny["egress"] == [{"ports": ports, "to": [resolver]}]
    elsewhere: dict[str, Any] = {
        "networkPolicy.dnsPods": None,
        "networkPolicy.dnsCidrs": ["169.254.20.10/32"],
    }
    deny = named(render(values=elsewhere), "NetworkPolicy", "t-default-deny")["spec"]
    assert deny["egress"][0]["to"] == [
        {"namespaceSelector": resolver["namespaceSelector"]},
        {"ipBlock": {"cidr": "169.254.20.10/32"}},
    ]
    own = {"networkPolicy.dnsFrom": {"team": "dns"}, "networkPolicy.dnsPods": {"app": "coredns"}}
    deny = named(render(values=own), "NetworkPolicy", "t-default-deny")["spec"]
    assert deny["egress"][0]["to"] == [
        {
            "namespaceSelector": {"matchLabels": {"team": "dns"}},
            "podSelector": {"matchLabels": {"app": "coredns"}},
        }
    ]
    openshift = named(render("openshift"), "NetworkPolicy", "t-default-deny")["spec"]["egress"]
    assert {each["port"] for each in openshift[0]["ports"]} == {5353}
    anywhere = render(values={"networkPolicy.dnsFrom": None})
    assert named(anywhere, "NetworkPolicy", "t-default-deny")["spec"]["egress"] == [{"ports": ports}]
    assert all(chosen(deny["podSelector"], component) for component in COMPONENTS)


def beyond_the_release(objects: list[Manifest], component: str) -> list[Manifest]:
    rules: list[Manifest] = named(objects, "NetworkPolicy", f"t-{component}")["spec"].get("egress", [])
    return [rule for rule in rules if not any("podSelector" in each for each in rule.get("to", []))]


def test_only_admission_and_the_credentials_job_reach_the_api_server() -> None:
    reaching = {each for each in COMPONENTS if beyond_the_release(render(), each)}
    assert reaching == {"admission", "credentials"}
    limited = render(values={"networkPolicy.apiServerCidrs": ["10.0.0.1/32"]})
    assert beyond_the_release(limited, "admission") == [
        {"ports": API_SERVER, "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}
    ]
    elsewhere = render(values={"networkPolicy.apiServerPorts": [8443]})
    assert beyond_the_release(elsewhere, "admission") == [{"ports": [{"port": 8443}]}]
    apart = render(values={"admission.kubernetes.enabled": False})
    assert beyond_the_release(apart, "admission") == []


def test_certificates_job_reaches_the_api_server_and_no_pod() -> None:
    objects = render(values={"tls.selfSigned.enabled": True})
    assert beyond_the_release(objects, "certificates") == [{"ports": API_SERVER}]
    assert flows(objects, (*COMPONENTS, "certificates")) == STANDARD


def test_metrics_and_scaler_are_open_to_named_namespaces_only() -> None:
    values = {
        "collector.mode": "builtin",
        "networkPolicy.metricsFrom": {"name": "monitoring"},
        "networkPolicy.scalerFrom": {"name": "keda"},
    }

    def from_outside(objects: list[Manifest]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for each in of_kind(objects, "NetworkPolicy"):
            rules: list[Manifest] = each["spec"].get("ingress") or []
            for rule in rules:
                if "namespaceSelector" in rule["from"][0]:
                    found[each["metadata"]["name"]] = [port["port"] for port in rule["ports"]]
        return found

    assert from_outside(render(values=values)) == {
        "t-collector": [9464, 8888],
        "t-nats": [8222],
        "t-admission": [7700],
    }
    assert from_outside(render(values={"collector.mode": "builtin"})) == {}


def test_brokers_outside_are_reached_at_their_addresses_only() -> None:
    values = {
        "nats.mode": "external",
        "nats.url": "nats://10.1.2.3:4222",
        "nats.auth.existingSecret": "mine",
        "networkPolicy.externalEgress": [{"cidr": "10.1.2.3/32", "port": 4222}],
    }
    objects = render(values=values)
    for service in SERVICES:
        outside = [rule for rule in beyond_the_release(objects, service) if rule["ports"] != API_SERVER]
        assert outside == [{"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 4222}]}]


def test_what_the_run_file_names_outside_of_the_release_is_reached() -> None:
    values: dict[str, Any] = {
        "nats.mode": "external",
        "nats.url": "wss://nats.example",  # without a port
        "nats.auth.existingSecret": "mine",
        "run.telemetry.otlp_endpoint": "otel.example:14317",
        "run.actor": {"engine": "vllm", "server": {"url": "http://vllm.inference:8000/v1"}},
    }

    def ports(component: str) -> set[int]:
        return {
            each["port"]
            for rule in beyond_the_release(render(values=values), component)
            for each in rule["ports"]
        }

    assert ports("actor") == {443, 14317, 8000}
    assert ports("learner") == {443, 14317}
    values["run.actor"]["server"]["url"] = "http://127.0.0.1:8000"  # in its own pod
    assert ports("actor") == {443, 14317}


def test_policies_can_be_disabled() -> None:
    assert not of_kind(render(values={"networkPolicy.enabled": False}), "NetworkPolicy")


def test_ports_of_ranks_stay_closed_when_policies_are_disabled() -> None:
    objects = render(values={"networkPolicy.enabled": False, "learner.ranks": 2})
    (policy,) = of_kind(objects, "NetworkPolicy")
    spec = policy["spec"]
    assert chosen(spec["podSelector"], "learner")
    assert not chosen(spec["podSelector"], "actor")
    assert spec["policyTypes"] == ["Ingress"]
    among_ranks, from_anywhere = spec["ingress"]
    assert chosen(among_ranks["from"][0]["podSelector"], "learner")
    assert not chosen(among_ranks["from"][0]["podSelector"], "actor")
    assert from_anywhere == {"ports": [{"port": 7700}, {"port": 7701}]}
    closed = render(values={"learner.ranks": 2})
    assert named(closed, "NetworkPolicy", "t-learner-ranks")["spec"]["ingress"] == [among_ranks]
    assert flows(closed, COMPONENTS) == STANDARD
