"""Generated texts match the chart, and renders match their golden files."""

import os
import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.chart.rendering import (
    CHART,
    PRESETS,
    ROOT,
    containers,
    named,
    needs_helm,
    pods,
    render,
    run,
)
from tools import chart_readme

pytestmark = pytest.mark.chart

GOLDEN = Path(__file__).parent / "golden"
# TIDEGATE_UPDATE_GOLDEN=1 pytest tests/chart/test_texts.py regenerates them; read the difference before committing it.
UPDATE = os.environ.get("TIDEGATE_UPDATE_GOLDEN") == "1"


def held_to(name: str, text: str) -> None:
    """Compare with a golden file, or write it."""
    path = GOLDEN / name
    if UPDATE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, (
        "if the change is meant: TIDEGATE_UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/chart/test_texts.py"
    )


def chart() -> dict[str, Any]:
    """Chart.yaml."""
    return cast("dict[str, Any]", yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8")))


def test_readme_and_run_values_are_up_to_date() -> None:
    for path, text in chart_readme.build().items():
        assert path.read_text(encoding="utf-8") == text, f"run `make chart`: {path.name}"


def test_every_value_of_the_table_is_a_value() -> None:
    values_part = (CHART / "README.md").read_text(encoding="utf-8").partition(chart_readme.BEGIN)[2]
    table = re.findall(r"^\| `([\w.]+)` \|", values_part, re.MULTILINE)
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert len(table) == len(set(table)) > 80
    for key in table:
        node = values
        for part in key.split("."):
            assert part in node, key
            node = node[part]


def test_version_has_an_entry_in_changelog_and_upgrading() -> None:
    version = chart()["version"]
    for name in ("CHANGELOG.md", "UPGRADING.md"):
        assert f"\n## {version}\n" in (CHART / name).read_text(encoding="utf-8"), name


def test_chart_has_its_metadata() -> None:
    metadata = chart()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert metadata["apiVersion"] == "v2"
    assert f'\nversion = "{metadata["appVersion"]}"\n' in project
    assert metadata["kubeVersion"]
    assert metadata["maintainers"]
    assert "dependencies" not in metadata  # a fresh clone installs without network


def test_templates_use_neither_lookup_nor_randomness() -> None:
    drawn = re.compile(r"\b(lookup|rand\w+|genCA|genSelfSignedCert|genSignedCert|genPrivateKey|uuidv4|now)\b")
    for path in (CHART / "templates").rglob("*.*"):
        for action in re.findall(r"\{\{.*?\}\}", path.read_text(encoding="utf-8"), re.DOTALL):
            if not action.startswith(("{{/*", "{{- /*")):
                assert not drawn.search(action), f"{path.name}: {action}"


@needs_helm
def test_every_rule_and_dashboard_is_shipped() -> None:
    values = {
        "rules.enabled": True,
        "dashboards": {"enabled": True, "scope": "cluster"},
        "rules.runbookBase": "docs.example/",
    }
    objects = render(values=values)
    rules = sorted((CHART / "rules").glob("*.yaml"))
    dashboards = sorted((CHART / "dashboards").glob("*.json"))
    assert rules
    assert dashboards
    for path in rules:
        groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        shipped = named(objects, "PrometheusRule", f"t-rules-{path.stem}")["spec"]["groups"]
        assert [group["name"] for group in shipped] == [group["name"] for group in groups]
        for group in shipped:
            for rule in group["rules"]:
                page = rule.get("annotations", {}).get("runbook_url", "docs.example/docs/runbooks/")
                assert page.startswith("docs.example/docs/runbooks/")
    for path in dashboards:
        shipped = named(objects, "ConfigMap", f"t-dashboard-{path.stem}")
        assert shipped["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert shipped["data"][path.name].strip() == path.read_text(encoding="utf-8").strip()


@needs_helm
def test_monitors_carry_the_labels_that_prometheus_selects_by() -> None:
    labels = {"release": "kube-prometheus-stack"}
    values = {
        "collector.mode": "builtin",
        "metrics.serviceMonitor": {"enabled": True, "labels": labels},
        "networkPolicy.metricsFrom": {"name": "monitoring"},
        "rules": {"enabled": True, "labels": labels},
    }
    objects = render(values=values)
    monitor = named(objects, "ServiceMonitor", "t-collector")
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == ["metrics", "self"]
    for each in objects:
        if each["kind"] in ("ServiceMonitor", "PrometheusRule"):
            assert labels.items() <= each["metadata"]["labels"].items()


@needs_helm
def test_collector_runs_the_files_that_its_tests_run() -> None:
    values = {"collector.mode": "builtin", "collector.tracesEndpoint": "tempo.tracing:4317"}
    objects = render(values=values)
    mounted = named(objects, "ConfigMap", "t-collector")["data"]
    assert set(mounted) == {"collector.yaml", "collector-traces.yaml"}
    for name, text in mounted.items():
        assert yaml.safe_load(text) == yaml.safe_load((CHART / "files" / name).read_text(encoding="utf-8"))
    (container,) = containers(named(objects, "Deployment", "t-collector")["spec"]["template"])
    assert container["args"] == [
        "--config=/etc/otelcol/collector.yaml",
        "--config=/etc/otelcol/collector-traces.yaml",
    ]
    # The service of every pod is at the collector's address in the run file.
    run_file = yaml.safe_load(named(objects, "ConfigMap", "t-run")["data"]["run.yaml"])
    assert run_file["telemetry"]["otlp_endpoint"] == "t-collector:4317"


@needs_helm
def test_packaged_chart_holds_what_it_renders_and_nothing_else(tmp_path: Path) -> None:
    done = run("helm", "package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    listed = run("tar", "--list", "--file", str(package)).stdout.split()
    folders = {name.split("/")[1] for name in listed}
    assert {"templates", "presets", "rules", "dashboards", "files", "values.schema.json"} <= folders
    assert "schema" not in folders
    from_package = run("helm", "template", "t", str(package), "--namespace", "space")
    assert from_package.stdout == run("helm", "template", "t", str(CHART), "--namespace", "space").stdout


@needs_helm
@pytest.mark.parametrize("preset", ["", *PRESETS])
def test_preset_makes_these_objects_of_these_images(preset: str) -> None:
    objects = render(preset)
    lines = sorted(f"{each['kind']} {each['metadata']['name']}" for each in objects)
    images = sorted({each["image"] for _, pod in pods(objects) for each in containers(pod)})
    held_to(f"{preset or 'defaults'}.txt", "\n".join([*lines, "", *images]) + "\n")


@needs_helm
def test_actor_is_rendered_as_it_was() -> None:
    held_to(
        "actor.yaml", yaml.safe_dump(named(render("one-node-cpu"), "Deployment", "t-actor"), sort_keys=False)
    )


@needs_helm
def test_broker_is_configured_as_it_was() -> None:
    held_to("nats.conf", str(named(render("production-ha"), "ConfigMap", "t-nats")["data"]["nats.conf"]))
