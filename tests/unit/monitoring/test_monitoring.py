"""Rules, runbook pages and dashboards against the catalogues they are generated from."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.catalogue.services import INSTRUMENTS
from tidegate.catalogue.telemetry import METRIC_AGE, METRIC_SLO_TARGET, METRIC_WEIGHTS_BYTES
from tidegate.core.slo_catalogue import SlosConfig, declared
from tools.monitoring.boards import BOARDS
from tools.monitoring.generate import DASHBOARDS, ROOT, RULES, RUNBOOKS, differences
from tools.monitoring.prometheus_names import label, metric, series_names
from tools.monitoring.rule_files import DEFAULT_PERIOD, INDEX, rule_files, runbook_pages
from tools.monitoring.slo_rules import BURN_WINDOWS, SLO_NAMES, Period, duration

METRIC_PATTERN = re.compile(
    r"\b(?:tidegate_[a-z_]+|rpc_[a-z_]+|process_[a-z_]+|slo:[a-z_]+:[a-z0-9_]+|tidegate:[a-z_]+:[a-z]+)\b"
)
# The lowest target that a run file may declare.
TARGET_MIN = 0.7


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


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_every_metric_says_what_it_is(name: str) -> None:
    instrument = INSTRUMENTS[name]
    assert instrument.meaning.endswith(".")
    assert bool(instrument.bounds) == (instrument.kind == "histogram")


@pytest.mark.slow
def test_every_rule_uses_names_that_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert names_in(rule["expr"]) <= series_names() | recorded, rule


def test_every_panel_uses_names_that_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for board in BOARDS:
        for row in board.rows:
            for panel in row.panels:
                for query in panel.queries:
                    found = names_in(query.expr)
                    assert found, query.expr
                    assert found <= series_names() | recorded, query.expr


def test_every_alert_says_how_bad_it_is_and_leads_to_a_page() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) == 2 * len(SLO_NAMES) + 12
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
        assert {"datasource", "run"} <= {variable["name"] for variable in found["templating"]["list"]}
        panels = [panel for panel in found["panels"] if panel["type"] != "row"]
        assert panels
        for panel in panels:
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(target["expr"] for target in panel["targets"])
    assert len(uids) == len(files)


def test_labels_read_with_underscores() -> None:
    assert label("tidegate.run.id") == "tidegate_run_id"
