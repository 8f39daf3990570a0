"""Rules and dashboards of two releases in one Prometheus: nothing is recorded, alerted or addressed twice."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, Manifest, named, needs_helm, of_kind, refusal, render

MONITORED = {
    "collector.mode": "builtin",
    "metrics.serviceMonitor.enabled": True,
    "networkPolicy.metricsFrom": {"name": "monitoring"},
    "rules.enabled": True,
    "dashboards.enabled": True,
}
OF_CLUSTER = {**MONITORED, "rules.scope": "cluster", "dashboards.scope": "cluster"}
# The same release name, so that the run ids are equal as well.
TEAMS = ("team-a", "team-b")
SELECTOR = re.compile(r"\{([^{}]*)\}")


def rules_of(objects: list[Manifest]) -> list[dict[str, Any]]:
    """Every rule of a render."""
    return [
        rule
        for each in of_kind(objects, "PrometheusRule")
        for group in each["spec"]["groups"]
        for rule in group["rules"]
    ]


def boards_of(objects: list[Manifest]) -> dict[str, dict[str, Any]]:
    """Every dashboard of a render, by its file name."""
    return {
        name: json.loads(text)
        for each in of_kind(objects, "ConfigMap")
        if each["metadata"]["labels"].get("grafana_dashboard")
        for name, text in each["data"].items()
    }


@needs_helm
@pytest.mark.parametrize("team", TEAMS)
def test_every_rule_of_a_release_reads_its_own_series_only(team: str) -> None:
    rules = rules_of(render(values=MONITORED, release="rl", namespace=team))
    assert len(rules) > 100
    for rule in rules:
        selectors = SELECTOR.findall(rule["expr"])
        assert selectors, rule
        for selector in selectors:
            assert f'namespace="{team}"' in selector, rule
            assert 'tidegate_run_id="cartpole-rl"' in selector or "(rl)-(" in selector, rule


@needs_helm
def test_rules_of_a_cluster_do_not_depend_on_the_release() -> None:
    texts = {json.dumps(rules_of(render(values=OF_CLUSTER, release="rl", namespace=team))) for team in TEAMS}
    assert len(texts) == 1
    shipped = [
        rule
        for path in sorted((CHART / "rules").glob("*.yaml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    assert json.loads(texts.pop()) == shipped


@needs_helm
def test_recorded_series_and_alerts_carry_namespace_and_run() -> None:
    for rule in rules_of(render(values=OF_CLUSTER)):
        aggregations = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        assert aggregations or rule["expr"].startswith("1 - slo:"), rule
        for labels in aggregations:
            assert "namespace" in labels.split(", "), rule


@needs_helm
def test_dashboards_of_two_releases_have_addresses_of_their_own() -> None:
    ours, theirs = (
        boards_of(render(values=MONITORED, release="rl", namespace=namespace)) for namespace in TEAMS
    )
    # Grafana's sidecar writes them into one folder, by these names.
    assert not set(ours) & set(theirs)
    assert not {each["uid"] for each in ours.values()} & {each["uid"] for each in theirs.values()}
    assert not {each["title"] for each in ours.values()} & {each["title"] for each in theirs.values()}
    for board in ours.values():
        assert len(board["uid"]) <= 40
        assert board["tags"] == ["tidegate", "team-a/rl"]
        assert [link["tags"] for link in board["links"]] == [["team-a/rl"]]
        queried = [each for each in board["templating"]["list"] if each["type"] == "query"]
        assert {each["name"]: each["allValue"] for each in queried} == {
            "namespace": "team-a",
            "run": "cartpole-rl",
        }
        for variable in queried:
            assert 'namespace="team-a",tidegate_run_id="cartpole-rl"' in variable["query"]


@needs_helm
def test_links_of_a_dashboard_lead_to_dashboards_of_the_same_release() -> None:
    boards = boards_of(render(values=MONITORED, release="rl", namespace="team-a"))
    addresses = {board["uid"] for board in boards.values()}
    linked = {uid for board in boards.values() for uid in re.findall(r"/d/([a-z0-9-]+)\?", json.dumps(board))}
    assert linked
    assert linked <= addresses


@needs_helm
def test_dashboards_of_a_cluster_are_shipped_as_they_are() -> None:
    boards = boards_of(render(values=OF_CLUSTER))
    paths = {path.name: path for path in (CHART / "dashboards").glob("*.json")}
    assert set(boards) == set(paths)
    for name, board in boards.items():
        assert board == json.loads(paths[name].read_text(encoding="utf-8"))


@needs_helm
def test_the_collectors_own_counters_name_the_run() -> None:
    monitor = named(render(values=MONITORED, release="rl"), "ServiceMonitor", "rl-collector")
    (own,) = [each for each in monitor["spec"]["endpoints"] if each["port"] == "self"]
    assert own["relabelings"] == [{"targetLabel": "tidegate_run_id", "replacement": "cartpole-rl"}]


@needs_helm
@pytest.mark.parametrize("section", ["rules", "dashboards"])
def test_another_scope_is_refused(section: str) -> None:
    assert "scope" in refusal({f"{section}.scope": "namespace"})
