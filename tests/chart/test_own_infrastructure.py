"""A registry, a broker, a collector and a Prometheus of one's own, and labels beside those of the chart."""

from typing import Any, cast

import pytest
import yaml

from tests.chart.rendering import (
    CHART,
    SERVICES,
    Manifest,
    containers,
    named,
    needs_helm,
    of_kind,
    pods,
    refusal,
    render,
)

pytestmark = [pytest.mark.chart, needs_helm]

EXTERNAL: dict[str, Any] = {
    "nats.mode": "external",
    "nats.url": "tls://nats.infra:4222",
    "nats.auth.existingSecret": "mine",
    "collector.mode": "external",
    "collector.endpoint": "otel-collector.monitoring:4317",
}
MONITOR: dict[str, Any] = {
    "metrics.serviceMonitor.enabled": True,
    "metrics.serviceMonitor.labels": {"release": "prometheus"},
    "metrics.serviceMonitor.collector": {"matchLabels": {"app": "otel-collector"}, "namespace": "monitoring"},
}
# What the chart itself makes, and what its broker and its collector are published as.
PUBLISHED = ("nats:", "otel/opentelemetry-collector-contrib:")


def images(objects: list[Manifest]) -> set[str]:
    return {each["image"] for _, pod in pods(objects) for each in containers(pod)}


def test_registry_of_own_images_leaves_the_broker_where_it_is_published() -> None:
    found = images(render(values={"images.registry": "registry.example/rl/", "collector.mode": "builtin"}))
    elsewhere = {image for image in found if not image.startswith("registry.example/rl/tidegate-")}
    assert len(elsewhere) == len(PUBLISHED)
    assert all(image.startswith(PUBLISHED) for image in elsewhere)


def test_registry_of_all_images_is_that_of_every_image_without_one_of_its_own() -> None:
    mirror = {"global.imageRegistry": "mirror.example", "collector.mode": "builtin"}
    assert all(image.startswith("mirror.example/") for image in images(render(values=mirror)))
    mixed = images(render(values={**mirror, "images.registry": "own.example", "nats.image.registry": "hub"}))
    assert {image.partition("/")[0] for image in mixed} == {"own.example", "hub", "mirror.example"}
    assert {image for image in mixed if image.startswith("hub/")} == {f"hub/{default_image('nats')}"}


def default_image(section: str) -> str:
    values = cast("dict[str, Any]", yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))
    image = values[section]["image"]
    return f"{image['repository']}:{image['tag']}"


def outside(objects: list[Manifest], component: str) -> list[Manifest]:
    """Egress rules of a component that name no pod."""
    rules: list[Manifest] = named(objects, "NetworkPolicy", f"t-{component}")["spec"].get("egress", [])
    return [rule for rule in rules if not any("podSelector" in each for each in rule.get("to", []))]


def test_pods_reach_their_own_broker_and_collector_without_further_values() -> None:
    objects = render(values=EXTERNAL)
    ports: dict[str, set[int]] = {
        component: {port["port"] for rule in outside(objects, component) for port in rule["ports"]}
        for component in (*SERVICES, "streams", "test", "credentials")
    }
    api_server = {443, 6443}
    assert ports.pop("admission") == {4222, 4317} | api_server
    assert ports.pop("credentials") == api_server
    assert ports.pop("streams") == {4222}
    assert set(map(frozenset, ports.values())) == {frozenset({4222, 4317})}


def test_named_addresses_are_the_only_ones_that_are_reached() -> None:
    named_ones = [{"cidr": "10.1.0.0/16", "port": 4222}, {"cidr": "10.2.0.0/16", "port": 4317}]
    objects = render(values={**EXTERNAL, "networkPolicy.externalEgress": named_ones})
    for component in ("actor", "learner"):
        reached = [
            (rule["to"][0]["ipBlock"]["cidr"], rule["ports"][0]["port"])
            for rule in outside(objects, component)
        ]
        assert reached == [("10.1.0.0/16", 4222), ("10.2.0.0/16", 4317)]


def test_monitor_reads_the_collector_of_ones_own() -> None:
    monitor = named(render(values={**EXTERNAL, **MONITOR}), "ServiceMonitor", "t-collector")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["monitoring"]}
    assert monitor["spec"]["selector"] == {"matchLabels": {"app": "otel-collector"}}
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == ["metrics"]


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ({"metrics.serviceMonitor.enabled": True}, "set collector.mode to builtin or external"),
        (
            {**EXTERNAL, "metrics.serviceMonitor.enabled": True},
            "set metrics.serviceMonitor.collector.matchLabels",
        ),
    ],
    ids=["none", "external"],
)
def test_monitor_of_nothing_is_refused(values: dict[str, Any], advice: str) -> None:
    assert advice in refusal(values, apis=("monitoring.coreos.com/v1",))


@pytest.mark.parametrize("where", ["commonLabels", "podDefaults.podLabels", "learner.podLabels"])
@pytest.mark.parametrize("key", ["app.kubernetes.io/instance", "helm.sh/chart", "tidegate.dev/pool"])
def test_label_that_the_chart_sets_is_refused(where: str, key: str) -> None:
    assert f"the chart itself sets {key}" in refusal({where: {key: "mine"}})


def test_the_same_label_given_twice_is_rendered_once_and_the_narrower_one_is_used() -> None:
    values = {"commonLabels": {"team": "all", "cost": "1"}, "actor.podLabels": {"team": "rl"}}
    actor = named(render(values=values), "Deployment", "t-actor")
    assert actor["metadata"]["labels"]["team"] == "all"
    labels = actor["spec"]["template"]["metadata"]["labels"]
    assert (labels["team"], labels["cost"]) == ("rl", "1")
    queue = {"kueue.x-k8s.io/queue-name": "mine"}
    assert named(render(values={"actor.podLabels": queue}), "Deployment", "t-actor")
    assert "the chart itself sets kueue" in refusal({"actor.podLabels": queue, "kueue.queueName": "team"})


def test_what_admission_writes_at_runtime_is_deleted_with_the_release() -> None:
    objects = render()
    (lease,) = of_kind(objects, "Lease")
    assert "spec" not in lease  # an upgrade leaves the holder alone
    (rule,) = (
        rule for rule in named(objects, "Role", "t-admission")["rules"] if rule["resources"] == ["leases"]
    )
    assert (rule["resourceNames"], rule["verbs"]) == ([lease["metadata"]["name"]], ["get", "update"])


def test_jobs_that_have_ended_are_deleted_unless_they_shall_stay() -> None:
    values = {"tls.selfSigned.enabled": True}
    jobs = of_kind(render(values=values), "Job")
    assert len(jobs) == 4
    assert {job["spec"]["ttlSecondsAfterFinished"] for job in jobs} == {86_400}
    kept = of_kind(render(values={**values, "jobTtlSeconds": None}), "Job")
    assert all("ttlSecondsAfterFinished" not in job["spec"] for job in kept)


def test_production_survives_a_power_cut_on_both_sides_of_the_broker() -> None:
    objects = render("production-ha")
    assert "sync_interval: always" in named(objects, "ConfigMap", "t-nats")["data"]["nats.conf"]
    run_file = yaml.safe_load(named(objects, "ConfigMap", "t-run")["data"]["run.yaml"])
    assert run_file["trajectory_store"]["durability"] == "power_loss"
