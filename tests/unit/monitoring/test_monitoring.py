"""Rules, runbook pages and dashboards against the catalogues they are generated from."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tidegate.catalogue.services import INSTRUMENTS
from tidegate.catalogue.telemetry import METRIC_AGE, METRIC_SLO_TARGET, METRIC_WEIGHTS_BYTES
from tidegate.core.slo_catalogue import SlosConfig, declared
from tools.monitoring.alerts import burn_alerts, other_alerts
from tools.monitoring.boards import BOARDS
from tools.monitoring.cluster_alerts import cluster_alerts
from tools.monitoring.dashboards import panel_ids, rendered
from tools.monitoring.exporters import FOREIGN
from tools.monitoring.generate import DASHBOARDS, ROOT, RULES, RUNBOOKS, differences
from tools.monitoring.panels import Board, Panel, Row
from tools.monitoring.prometheus_names import label, metric, series_names
from tools.monitoring.rule_files import DEFAULT_PERIOD, INDEX, rule_files, runbook_pages
from tools.monitoring.slo_rules import BURN_WINDOWS, SLO_NAMES, Period, duration

METRIC_PATTERN = re.compile(
    r"\b(?:tidegate_[a-z_]+|kube(?:let)?_[a-z_]+|DCGM_[A-Z_]+|otelcol_[a-z_]+|rpc_[a-z_]+|process_[a-z_]+|hw_gpu_[a-z_]+|slo:[a-z_]+:[a-z0-9_]+|tidegate:[a-z_]+:[a-z]+)\b"
)
# The lowest target that a run file may declare.
TARGET_MIN = 0.7


PERIOD = DEFAULT_PERIOD


def rules() -> list[dict[str, Any]]:
    """Every rule that the chart ships."""
    return [
        rule
        for path in (ROOT / RULES).glob("*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


def names_in(expr: str) -> set[str]:
    """Series that an expression asks for; labels are left out."""
    without_selectors = re.sub(r"\{[^}]*\}", "", expr)
    without_labels = re.sub(r"\b(?:by|on|group_left|ignoring) \([^)]*\)", "", without_selectors)
    return set(METRIC_PATTERN.findall(without_labels))


def test_what_is_shipped_is_what_the_catalogues_say() -> None:
    assert differences() == []


def test_names_read_in_prometheus_as_the_collector_translates_them() -> None:
    assert metric(METRIC_AGE) == "tidegate_trajectory_age_seconds"
    assert metric(METRIC_SLO_TARGET) == "tidegate_slo_target_ratio"
    assert metric(METRIC_WEIGHTS_BYTES) == "tidegate_weights_size_bytes_total"
    assert (
        metric("tidegate.admission.goodput") == "tidegate_admission_goodput_per_second"
    )  # of {trajectory}/s


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_every_metric_says_what_it_is(name: str) -> None:
    instrument = INSTRUMENTS[name]
    assert instrument.meaning.endswith(".")
    assert bool(instrument.bounds) == (instrument.kind == "histogram")


@pytest.mark.slow
def test_every_rule_uses_names_that_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert names_in(rule["expr"]) <= series_names() | recorded | FOREIGN, rule


def test_every_panel_uses_names_that_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for board in BOARDS:
        for row in board.rows:
            for panel in row.panels:
                for query in panel.queries:
                    found = names_in(query.expr)
                    assert found, query.expr
                    assert found <= series_names() | recorded | FOREIGN, query.expr


def test_every_alert_says_how_bad_it_is_and_leads_to_a_page() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) == len([*burn_alerts(PERIOD), *other_alerts(PERIOD), *cluster_alerts(PERIOD)])
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "description", "runbook_url"} <= set(alert["annotations"])
        page = (ROOT / alert["annotations"]["runbook_url"]).read_text()
        assert page.startswith(f"# {alert['alert']}\n")
        assert "## Confirm" in page
        assert "## Do" in page


def test_there_is_no_page_without_an_alert() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    pages = {path.name for path in (ROOT / RUNBOOKS).glob("*.md")}
    assert pages == set(runbook_pages(DEFAULT_PERIOD)) == {INDEX, *(f"{name}.md" for name in alerts)}
    index = (ROOT / RUNBOOKS / INDEX).read_text()
    assert all(f"({name}.md)" in index for name in alerts)


def test_every_objective_has_a_burn_that_can_fire() -> None:
    """A ratio cannot exceed 1: factor times budget must stay below it, or the alert is decoration."""
    every = {name: {"enabled": True} for name in SLO_NAMES}
    config = SlosConfig(**{name: type(SlosConfig().lag_p95)(**value) for name, value in every.items()})
    for slo in declared(config, max_lag=4, max_age_s=300.0).values():
        for window in BURN_WINDOWS:
            assert window.factor * (1.0 - slo.target) < 1.0
    assert min(window.factor for window in BURN_WINDOWS if window.severity == "page") * (1 - TARGET_MIN) < 1


def test_windows_follow_the_period_and_never_get_shorter_than_a_few_scrapes() -> None:
    texts = rule_files(Period(period_s=600.0, window_min_s=15.0))
    recorded = re.findall(r"ratio_rate(\w+)\n", texts["slo-recording.yaml"])
    assert set(recorded) == {"15s", "17s", "50s", "200s", "10m"}
    assert duration(7200) == "2h"
    assert duration(90) == "90s"


def test_dashboards_have_their_own_address_and_ask_the_chosen_source() -> None:
    files = sorted((ROOT / DASHBOARDS).glob("*.json"))
    assert len(files) == len(BOARDS)
    uids: set[str] = set()
    for path in files:
        found = json.loads(path.read_text())
        uids.add(found["uid"])
        assert Path(path).stem == found["uid"]
        assert {"datasource", "namespace", "run"} <= {
            variable["name"] for variable in found["templating"]["list"]
        }
        panels = [panel for panel in found["panels"] if panel["type"] != "row"]
        assert panels
        for panel in panels:
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(target["expr"] for target in panel["targets"])
    assert len(uids) == len(files)


def panels_of(board: Board) -> list[Panel]:
    """Every panel of a dashboard."""
    return [panel for row in board.rows for panel in row.panels]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_panel_says_what_it_shows_and_in_which_unit(board: Board) -> None:
    for panel in json.loads(rendered(board))["panels"]:
        if panel["type"] == "row":
            continue
        # What it shows, what is normal or when to act.
        assert panel["description"].count(".") >= 2, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        if panel["type"] == "heatmap":
            assert panel["options"]["yAxis"]["unit"], panel["title"]
            assert panel["options"]["cellValues"]["unit"], panel["title"]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_panel_has_an_id_of_its_own(board: Board) -> None:
    ids = [panel["id"] for panel in json.loads(rendered(board))["panels"]]
    assert all(isinstance(each, int) and each > 0 for each in ids)
    assert len(set(ids)) == len(ids)


def test_ids_stay_when_other_panels_come_and_go() -> None:
    board = next(board for board in BOARDS if board.uid == "tidegate-slo")
    assert panel_ids(board)["Budgets", "Budget left"] == 452439
    shorter = msgspec.structs.replace(board, rows=board.rows[1:])
    kept = panel_ids(shorter)
    assert kept
    assert kept.items() <= panel_ids(board).items()


def test_two_panels_with_one_title_in_a_row_are_refused() -> None:
    board = BOARDS[0]
    (panel, *_) = panels_of(board)
    twice = msgspec.structs.replace(board, rows=(Row("Twice", (panel, panel)),))
    with pytest.raises(ValueError, match="the same id"):
        panel_ids(twice)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_panels_aggregate_by_run_and_never_across_runs(board: Board) -> None:
    for panel in panels_of(board):
        for query in panel.queries:
            if panel.kind == "heatmap":
                continue  # repeated for each run
            assert not re.search(r"\b(sum|max|min|count|avg|group) ?\(", query.expr), query.expr
            for labels in re.findall(r"\bby \(([^)]*)\)", query.expr):
                # By release, where the metric of another exporter is joined with the run of the release.
                of_release = "tidegate:run_of_release:info" in query.expr
                needed = {"namespace", "release" if of_release else "tidegate_run_id"}
                assert needed <= set(labels.split(", ")), query.expr


def test_a_heatmap_shows_one_run_and_is_repeated_for_each() -> None:
    shown = [
        panel
        for board in BOARDS
        for panel in json.loads(rendered(board))["panels"]
        if panel["type"] == "heatmap"
    ]
    assert shown
    assert {panel["repeat"] for panel in shown} == {"run"}


def test_legends_name_the_run_and_no_uid() -> None:
    for board in BOARDS:
        for panel in json.loads(rendered(board))["panels"]:
            for target in panel.get("targets", []):
                assert panel["type"] == "heatmap" or target["legendFormat"].endswith(
                    "{{namespace}}/{{tidegate_run_id}}"
                )


def test_a_run_in_the_table_of_runs_leads_to_its_own_dashboard() -> None:
    (board,) = [board for board in BOARDS if board.uid == "tidegate-runs"]
    (shown,) = [panel for panel in json.loads(rendered(board))["panels"] if panel["type"] == "table"]
    (url,) = re.findall(r'"url": "([^"]*)"', json.dumps(shown["fieldConfig"]["overrides"]))
    assert url.startswith("/d/tidegate-slo?")
    assert "var-namespace=${__data.fields.namespace}" in url
    assert "var-run=${__data.fields.run}" in url
    # A column for each query: Grafana names their values by the query's letter.
    renamed = shown["transformations"][1]["options"]["renameByName"]
    assert {f"Value #{target['refId']}" for target in shown["targets"]} <= set(renamed)


def test_labels_read_with_underscores() -> None:
    assert label("tidegate.run.id") == "tidegate_run_id"
