"""The rule files of the chart, as Prometheus reads them."""

import re
from typing import Any, cast

import yaml

from tools.monitoring.alerts import Alert, burn_alerts, other_alerts
from tools.monitoring.slo_rules import SLO_NAMES, Period, Rule, duration, recording_rules

RUNBOOKS = "docs/runbooks"
DAY_S = 86400.0
# Three samples of a scrape interval of ten seconds and some slack.
WINDOW_MIN_S = 60.0
DEFAULT_PERIOD = Period(DAY_S, WINDOW_MIN_S)

INDEX = "README.md"
PREFACE = """\
A page wants somebody now; a ticket can wait until morning. A burn pages when 10 % of an objective's budget is gone
within a 48th of the period, or 25 % within a twelfth, and it still goes on; it is a ticket at 50 % within a third. The
period is a day; `python -m tools.monitoring.generate --rules FOLDER --period SECONDS` writes rules of another one.
"""
HEADER = """\
# Generated from the catalogue of objectives by `python -m tools.monitoring.generate`; edits are overwritten.
# Budgets count over {period}.
"""


def rule_files(period: Period) -> dict[str, str]:
    """File name to text: what is recorded of each objective, what burns, and what is wrong without an objective."""
    recorded = [{"name": f"tidegate-slo-{slo}", "rules": recording_rules(slo, period)} for slo in SLO_NAMES]
    burning = [{"name": "tidegate-slo-burn", "rules": [rule(each, period) for each in burn_alerts(period)]}]
    others = [{"name": "tidegate", "rules": [rule(each, period) for each in other_alerts(period)]}]
    return {
        "slo-recording.yaml": _text(recorded, period),
        "slo-alerts.yaml": _text(burning, period),
        "alerts.yaml": _text(others, period),
    }


def rule(alert: Alert, period: Period) -> Rule:
    """One alert as a rule; the runbook's address is relative, for whoever deploys it to say where pages are."""
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
    """File name to text: a page an alert (the two severities of a burn share one), and a table of them all."""
    alerts = [*other_alerts(period), *burn_alerts(period)]
    return {INDEX: _index(alerts), **{f"{alert.name}.md": _page(alert) for alert in alerts}}


def _index(alerts: list[Alert]) -> str:
    severities: dict[str, list[str]] = {}
    for alert in alerts:
        severities.setdefault(alert.name, []).append(alert.severity)
    # Without the run and the labels that only a firing alert has.
    meanings = {alert.name: re.sub(r"^Run .*?: |{{.*?}} ?", "", alert.summary) for alert in alerts}
    rows = [
        f"| [{name}]({name}.md) | {', '.join(found)} | {meanings[name]} |"
        for name, found in severities.items()
    ]
    return "\n".join(
        ["# Alerts", "", PREFACE, "| alert | severity | what it means |", "|---|---|---|", *rows, ""]
    )


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
    """Every rule spelled out, and expressions of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        """No anchors: a reader of one rule sees all of it."""
        return True


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return cast("Any", dumper).represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _as_block)
