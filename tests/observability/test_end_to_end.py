"""A real run seen through a real collector, Prometheus and Jaeger."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.observability.conftest import Observed
from tests.observability.stack import get
from tools.monitoring.boards import BOARDS
from tools.monitoring.pictures import draw
from tools.monitoring.queries import filled
from tools.monitoring.slo_rules import duration

pytestmark = [pytest.mark.observability, pytest.mark.slow, pytest.mark.timeout(600)]

WHOLE_PATH = (
    "task.lease",
    "send TASKS",
    "trajectory.generate",
    "send TRAJECTORIES",
    "store.append",
    "trajectory.consume",
)
ROUNDING = 0.005


def tags(span: dict[str, Any]) -> dict[str, Any]:
    """A span's attributes."""
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def whole_traces(observed: Observed) -> list[dict[str, Any]]:
    """Traces of trajectories that were trained and not late: every span was written when it happened."""
    found = observed.stack.traces("tidegate-learner", "trajectory.consume", limit=200)
    return [
        trace
        for trace in found
        if not any(tags(span).get("tidegate.trace.deferred") for span in trace["spans"])
    ]


def test_the_trace_of_a_trajectory_goes_from_its_task_to_its_gradient(
    observed: Observed, findings: Path
) -> None:
    traces = whole_traces(observed)
    assert traces
    for trace in traces:
        assert {span["operationName"] for span in trace["spans"]} == set(WHOLE_PATH)
    shown = traces[0]
    by_name = {span["operationName"]: span for span in shown["spans"]}
    services = {name: shown["processes"][span["processID"]]["serviceName"] for name, span in by_name.items()}
    assert services == {
        "task.lease": "tidegate-task_queue",
        "send TASKS": "tidegate-task_queue",
        "trajectory.generate": "tidegate-actor",
        "send TRAJECTORIES": "tidegate-actor",
        "store.append": "tidegate-trajectory_store",
        "trajectory.consume": "tidegate-learner",
    }
    parents = {
        name: next(
            (
                other
                for other, candidate in by_name.items()
                for reference in span["references"]
                if reference["refType"] == "CHILD_OF" and reference["spanID"] == candidate["spanID"]
            ),
            None,
        )
        for name, span in by_name.items()
    }
    assert parents["task.lease"] is None
    assert parents["trajectory.generate"] == "task.lease"
    assert parents["store.append"] == parents["trajectory.consume"] == "trajectory.generate"
    generated, consumed = tags(by_name["trajectory.generate"]), tags(by_name["trajectory.consume"])
    assert generated["tidegate.policy.version.start"] == consumed["tidegate.policy.version.start"]
    learner_step = int(consumed["tidegate.policy.version.learner"].rpartition("@")[2])
    start_step = int(consumed["tidegate.policy.version.start"].rpartition("@")[2])
    assert consumed["tidegate.policy.lag"] == learner_step - 1 - start_step
    sent = tags(by_name["send TRAJECTORIES"])
    assert (sent["messaging.system"], sent["messaging.destination.name"]) == ("nats", "TRAJECTORIES")
    [step] = [
        reference
        for reference in by_name["trajectory.consume"]["references"]
        if reference["refType"] == "FOLLOWS_FROM"
    ]
    gradient = observed.stack.trace(step["traceID"])
    assert gradient is not None
    assert {span["operationName"] for span in gradient["spans"]} >= {"learner.step", "weights.publish"}
    lines = [
        {
            "span": span["operationName"],
            "service": shown["processes"][span["processID"]]["serviceName"],
            "after_ms": (span["startTime"] - by_name["task.lease"]["startTime"]) / 1e3,
            "took_ms": span["duration"] / 1e3,
            "attributes": {
                key: value for key, value in tags(span).items() if key.startswith(("tidegate", "messaging"))
            },
        }
        for span in sorted(shown["spans"], key=lambda span: span["startTime"])
    ]
    lines += [
        {"span": span["operationName"], "trace": "of the update", "took_ms": span["duration"] / 1e3}
        for span in gradient["spans"]
    ]
    (findings / "trace.json").write_text(json.dumps(lines, indent=1))


def test_a_late_trajectory_is_traced_whole_though_it_was_not_sampled(observed: Observed) -> None:
    """The slowed learner made most of them late; four in five of those were not sampled."""
    found = observed.stack.traces("tidegate-learner", "trajectory.consume", limit=500)
    late = [
        trace for trace in found if any(tags(span).get("tidegate.trace.deferred") for span in trace["spans"])
    ]
    assert late
    for trace in late:
        assert {span["operationName"] for span in trace["spans"]} == {
            "task.lease",
            "trajectory.generate",
            "trajectory.consume",
        }
        [consumed] = [span for span in trace["spans"] if span["operationName"] == "trajectory.consume"]
        assert tags(consumed)["tidegate.slo.violation"] is True


def test_exemplars_lead_from_a_bucket_to_a_trace(observed: Observed) -> None:
    found = get(
        f"{observed.stack.prometheus}/api/v1/query_exemplars",
        query="tidegate_trajectory_policy_lag_bucket",
        start=f"{observed.started_at_s:.0f}",
        end=f"{observed.ended_at_s:.0f}",
    )["data"]
    exemplars = [exemplar for series in found for exemplar in series["exemplars"]]
    assert exemplars
    for exemplar in exemplars:
        trace = observed.stack.trace(exemplar["labels"]["trace_id"])
        assert trace is not None
        assert exemplar["labels"]["span_id"] in {span["spanID"] for span in trace["spans"]}


def test_each_objective_in_promql_is_what_tidegate_slo_says(observed: Observed, findings: Path) -> None:
    run, at_s = f'tidegate_run_id="{observed.run_id}"', observed.ended_at_s
    whole = duration(600.0)
    table: list[dict[str, Any]] = []
    for verdict in observed.slos:
        slo = verdict["slo"]["name"]
        events = {
            result: observed.stack.number(
                f'sum(tidegate_slo_events_total{{{run},tidegate_slo="{slo}",tidegate_slo_result="{result}"}})',
                at_s=at_s,
            )
            for result in ("good", "bad")
        }
        ratio = observed.stack.number(
            f'slo:sli_error:ratio_rate{whole}{{{run},sloth_slo="{slo}"}}', at_s=at_s
        )
        left = observed.stack.number(f'tidegate:slo_budget_left:ratio{{{run},sloth_slo="{slo}"}}', at_s=at_s)
        target = observed.stack.number(f'slo:objective:ratio{{{run},sloth_slo="{slo}"}}', at_s=at_s)
        judged = verdict["good"] + verdict["bad"]
        table.append(
            {
                "slo": slo,
                "good": [verdict["good"], events["good"]],
                "bad": [verdict["bad"], events["bad"]],
                "error_ratio": [verdict["bad"] / judged if judged else None, ratio],
                "budget_left": [verdict["budget_left"], left],
                "target": [verdict["slo"]["target"], target],
            }
        )
    (findings / "slo.json").write_text(json.dumps(table, indent=1))
    assert len(table) >= 9
    for line in table:
        assert line["good"][0] == line["good"][1], line
        assert line["bad"][0] == line["bad"][1], line
        assert line["target"][0] == pytest.approx(line["target"][1]), line
        if line["error_ratio"][0] is None:
            assert line["error_ratio"][1] is None, line
            continue
        assert line["error_ratio"][1] == pytest.approx(line["error_ratio"][0], abs=ROUNDING), line
        # One percent of an error ratio is a budget's whole fifth at a target of 95 %.
        budget = max(1e-9, 1 - line["target"][0])
        assert line["budget_left"][1] == pytest.approx(line["budget_left"][0], abs=ROUNDING / budget), line


def test_an_alert_fires_when_the_learner_is_slowed(observed: Observed, findings: Path) -> None:
    (findings / "alerts.json").write_text(json.dumps(observed.fired, indent=1))
    assert "TidegateAgeP95Burn" in observed.fired
    alert = observed.fired["TidegateAgeP95Burn"]
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert alert["labels"]["tidegate_run_id"] == observed.run_id
    assert "TidegateMaxLagExceeded" not in observed.fired


def test_every_panel_of_every_dashboard_returns_data(observed: Observed, findings: Path) -> None:
    values: list[dict[str, Any]] = []
    for board in BOARDS:
        for row in board.rows:
            for panel in row.panels:
                for query in panel.queries:
                    expr = filled(query.expr, run_id=observed.run_id, window="20s")
                    found = observed.stack.query(expr, at_s=observed.undisturbed_until_s)
                    values.append(
                        {
                            "dashboard": board.title,
                            "panel": panel.title,
                            "only_with": panel.only_with,
                            "query": expr,
                            "series": len(found),
                            "values": [
                                {
                                    **{k: v for k, v in each["metric"].items() if k != "tidegate_run_id"},
                                    "value": float(each["value"][1]),
                                }
                                for each in found[:12]
                            ],
                        }
                    )
    (findings / "panels.json").write_text(json.dumps(values, indent=1))
    empty = [
        f"{each['dashboard']}: {each['panel']}: {each['query']}"
        for each in values
        if not each["series"] and not each["only_with"]
    ]
    assert not empty
    silent = [
        f"{each['dashboard']}: {each['panel']}"
        for each in values
        if each["series"] and all(math.isnan(value["value"]) for value in each["values"])
    ]
    assert not silent


def test_the_dashboards_are_drawn(observed: Observed, findings: Path) -> None:
    pictures = draw(
        observed.stack.prometheus,
        run_id=observed.run_id,
        start_s=observed.started_at_s,
        end_s=observed.ended_at_s,
        folder=findings / "dashboards",
    )
    assert len(pictures) == len(BOARDS)
    for picture in pictures:
        assert 5_000 < picture.stat().st_size < 400_000
