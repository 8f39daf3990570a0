"""The Prometheus rule files of the chart, and the runbook pages of their alerts."""

import re
from typing import Any, cast

import yaml

from tools.monitoring.alerts import Alert, burn_alerts, other_alerts
from tools.monitoring.cluster_alerts import cluster_alerts, run_of_release
from tools.monitoring.slo_rules import SLO_NAMES, Period, Rule, duration, recording_rules

RUNBOOKS = "docs/runbooks"
DAY_S = 86400.0
# Three samples of a scrape interval of ten seconds and some slack.
WINDOW_MIN_S = 60.0
DEFAULT_PERIOD = Period(DAY_S, WINDOW_MIN_S)

INDEX = "README.md"
PREFACE = """\
A page needs an operator now; a ticket can wait for the next working day. A burn pages when 10 % of an error budget is
spent within 1/48 of the period, or 25 % within 1/12, and the burn continues; 50 % within 1/3 opens a ticket. The period
is a day; `python -m tools.monitoring.generate --rules FOLDER --period SECONDS` writes rules for another.
"""
HEADER = """\
# Generated from the catalogue of objectives by `python -m tools.monitoring.generate`; edits are overwritten.
# Error budgets cover {period}.
"""


def rule_files(period: Period) -> dict[str, str]:
    """File name to text: recording rules and burn alerts of each objective, and the other alerts."""
    recorded = [{"name": f"tidegate-slo-{slo}", "rules": recording_rules(slo, period)} for slo in SLO_NAMES]
    burning = [{"name": "tidegate-slo-burn", "rules": [rule(each, period) for each in burn_alerts(period)]}]
    others = [
        {
            "name": "tidegate",
            "rules": [rule(each, period) for each in other_alerts(period)],
        },
        {
            "name": "tidegate-cluster",
            "rules": [run_of_release(), *(rule(each, period) for each in cluster_alerts(period))],
        },
    ]
    return {
        "slo-recording.yaml": _text(recorded, period),
        "slo-alerts.yaml": _text(burning, period),
        "alerts.yaml": _text(others, period),
    }


def rule(alert: Alert, period: Period) -> Rule:
    """One alert as a rule; the runbook's address is relative, for the deployment to complete."""
    found: Rule = {"alert": alert.name, "expr": alert.expr}
    if alert.for_share:
        found["for"] = duration(max(period.period_s * alert.for_share, period.window_min_s))
    return {
        **found,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.meaning,
            "runbook_url": f"{RUNBOOKS}/{alert.name}.md",
        },
    }


def runbook_pages(period: Period) -> dict[str, str]:
    """File name to text: one page for each alert (both severities of a burn share it), and an index."""
    alerts = [*other_alerts(period), *cluster_alerts(period), *burn_alerts(period)]
    return {INDEX: _index(alerts), **{f"{alert.name}.md": _page(alert) for alert in alerts}}


def _index(alerts: list[Alert]) -> str:
    severities: dict[str, list[str]] = {}
    for alert in alerts:
        severities.setdefault(alert.name, []).append(alert.severity)
    # Without the run and the labels that only a firing alert has.
    meanings = {
        alert.name: re.sub(
            r"^Run .*?: |{{.*?}} ?", "", re.sub(r"\b(stream|consumer) {{", r"a \1 {{", alert.summary)
        )
        for alert in alerts
    }
    rows = [
        f"| [{name}]({name}.md) | {', '.join(found)} | {meanings[name]} |"
        for name, found in severities.items()
    ]
    return "\n".join(["# Alerts", "", PREFACE, "| alert | severity | meaning |", "|---|---|---|", *rows, ""])


def _page(alert: Alert) -> str:
    parts = [f"# {alert.name}", alert.meaning, "## Confirm", _list(alert.confirm, "-")]
    parts += ["## Do", _list(alert.steps, "1.")]
    return "\n\n".join(parts) + "\n"


def _list(items: tuple[str, ...], bullet: str) -> str:
    return "\n".join(f"{bullet} {item}" for item in items)


def _text(groups: list[dict[str, Any]], period: Period) -> str:
    body: str = yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, width=4096, allow_unicode=True)
    return HEADER.format(period=duration(period.period_s)) + body


class _Dumper(yaml.SafeDumper):
    """Writes every rule in full, and expressions of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        """No anchors, so that each rule is readable by itself."""
        return True


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return cast("Any", dumper).represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _as_block)
