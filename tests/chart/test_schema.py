"""Values that are refused before installation: typos, wrong types and wrong places, in the run file and around it."""

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml

from tests.chart.rendering import (
    CHART,
    PRESETS,
    ROOT,
    helm_arguments,
    named,
    needs_cluster,
    needs_helm,
    refusal,
    render,
    run,
    run_values,
)
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunFile
from tidegate.launch.services import SERVICES
from tools import chart_schema

pytestmark = [pytest.mark.chart, needs_helm]
RUN_FILES = sorted((ROOT / "runs").glob("*.yaml"))


def test_schema_matches_the_types_of_the_run_file() -> None:
    assert chart_schema.SCHEMA.read_text(encoding="utf-8") == chart_schema.text(), "run `make chart`"


def test_every_object_with_properties_is_closed() -> None:
    opened: list[str] = []

    def visit(node: object, path: str) -> None:
        if isinstance(node, dict):
            schema = cast("dict[str, Any]", node)
            holds_names = "properties" in schema and schema.get("type") == "object"
            if holds_names and schema.get("additionalProperties") is not False:
                opened.append(path)
            for key, value in schema.items():
                visit(value, f"{path}/{key}")
        elif isinstance(node, list):
            for index, value in enumerate(cast("list[object]", node)):
                visit(value, f"{path}/{index}")

    visit(json.loads(chart_schema.SCHEMA.read_text(encoding="utf-8")), "")
    assert opened == ["/properties/global"]  # shared with charts around this one


def test_no_choice_of_a_setting_is_a_word_that_yaml_reads_as_true_or_false() -> None:
    misread: list[str] = []

    def visit(node: object, path: str) -> None:
        if isinstance(node, dict):
            schema = cast("dict[str, Any]", node)
            choices = cast("list[object]", schema.get("enum", []))
            misread.extend(f"{path}: {choice}" for choice in choices if yaml.safe_load(str(choice)) != choice)
            for key, value in schema.items():
                visit(value, f"{path}/{key}")
        elif isinstance(node, list):
            for index, value in enumerate(cast("list[object]", node)):
                visit(value, f"{path}/{index}")

    visit(json.loads(chart_schema.text()), "")
    assert misread == []


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"run.stalenes": {"max_lag": 1}}, "'stalenes' not allowed"),
        ({"run.staleness.maxlag": 1}, "'maxlag' not allowed"),
        ({"run.staleness.max_lag": -1}, "/run/staleness/max_lag"),
        ({"run.staleness.max_lag": "four"}, "/run/staleness/max_lag"),
        ({"run.actor.slotz": 2}, "'slotz' not allowed"),
        ({"run.learner.actor_critic.gama": 0.9}, "'gama' not allowed"),
        ({"run.workload.kind": "txt"}, "/run/workload/kind"),
        ({"run.run": "Upper Case"}, "/run/run"),
        ({"run.batch_size": None}, "batch_size"),
        ({"actor.gpus": 1}, "'gpus' not allowed"),
        ({"actor.resources.request": {}}, "'request' not allowed"),
        ({"actor.resources.limits": {"memory": "1 gig"}}, "/actor/resources/limits/memory"),
        ({"actor.pools.spot.nodeSelectr": {}}, "'nodeSelectr' not allowed"),
        ({"actor.gateway.key": "in a file"}, "'key' not allowed"),
        ({"actor.sandbox.userNamespace": True}, "'sandbox' not allowed"),
        ({"environment.sandbox.seccompProfile": "/on/the/node.json"}, "/environment/sandbox/seccompProfile"),
        ({"weightDistribution.replicas": 2}, "'replicas' not allowed"),
        ({"task_queue": {}}, "'task_queue' not allowed"),
        ({"images.tag": "latest"}, "/images/tag"),
        ({"nats.replicas": 2}, "/nats/replicas"),
        ({"nats.preStopSleepSeconds": 5}, "'preStopSleepSeconds' not allowed"),
        ({"collector.startupBudgetSeconds": 900}, "'startupBudgetSeconds' not allowed"),
        ({"nats.durability": "none"}, "/nats/durability"),
        ({"nats.url": "nats.example:4222"}, "/nats/url"),
        ({"nats.auth.password": "in a file"}, "'password' not allowed"),
        ({"collector.endpoint": "no-port"}, "/collector/endpoint"),
        ({"networkPolicies": {"enabled": False}}, "'networkPolicies' not allowed"),
    ],
    ids=str,
)
def test_typo_is_named(values: dict[str, Any], place: str) -> None:
    assert place in refusal(values)


TYPO = ["--set-json", "run.stalenes={}"]


def test_lint_refuses_what_template_refuses() -> None:
    assert "'stalenes' not allowed" in run("helm", "lint", str(CHART), *TYPO).stdout


@needs_cluster
def test_install_refuses_what_template_refuses() -> None:
    dry = run("helm", "install", *helm_arguments(), "--dry-run=client", *TYPO)
    assert dry.returncode != 0
    assert "'stalenes' not allowed" in dry.stderr


@pytest.mark.parametrize("preset", ["", *PRESETS])
def test_lint_finds_nothing(preset: str) -> None:
    chosen = ["--values", str(CHART / "presets" / f"{preset}.yaml")] if preset else []
    done = run("helm", "lint", "--strict", "--quiet", str(CHART), *chosen)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.stem)
def test_run_file_of_a_laptop_is_the_run_file_of_a_pod(path: Path) -> None:
    values = run_values(path)
    mounted = yaml.safe_load(named(render(values=values), "ConfigMap", "t-run")["data"]["run.yaml"])
    assert mounted == values["run"]
    on_laptop, in_pod = (parse_plan(raw, source="run.yaml") for raw in (values["run"], mounted))
    assert in_pod == on_laptop


def test_default_run_leaves_no_value_in_a_custom_run() -> None:
    ours = cast("dict[str, Any]", yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))["run"]
    required = {field.name for field in msgspec.structs.fields(RunFile) if field.required}
    assert set(ours) == required  # and so every run file replaces all of it
    assert set(ours["workload"]) == {"kind", "env"}
    assert set(ours["policy"]) == {"kind"}


@pytest.mark.parametrize("preset", PRESETS)
def test_run_of_every_preset_is_valid(preset: str) -> None:
    mounted = named(render(preset), "ConfigMap", "t-run")["data"]["run.yaml"]
    assert set(parse_plan(yaml.safe_load(mounted), source="run.yaml").services) == set(SERVICES)


def test_large_integers_of_a_run_file_stay_integers() -> None:
    # Helm's own YAML would write 1.073741824e+09, which is no integer to a reader.
    values = {"run.trajectory_store.max_resident_bytes": 1 << 30}
    mounted = named(render(values=values), "ConfigMap", "t-run")["data"]["run.yaml"]
    assert yaml.safe_load(mounted)["trajectory_store"]["max_resident_bytes"] == 1 << 30


def test_comparison_in_a_target_survives() -> None:
    values = {"run.until": "mean_return>=475 and more<1", "run.workload.env": "my&module:Mine-v0"}
    mounted = named(render(values=values), "ConfigMap", "t-run")["data"]["run.yaml"]
    assert yaml.safe_load(mounted)["until"] == "mean_return>=475 and more<1"
    assert yaml.safe_load(mounted)["workload"]["env"] == "my&module:Mine-v0"
    assert "mean_return>=475" in mounted
