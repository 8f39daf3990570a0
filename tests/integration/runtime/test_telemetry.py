"""Spans and metrics as a real OTLP receiver sees them."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from structlog.testing import capture_logs

from tests.support.broker import free_port
from tests.support.otlp_sink import OtlpSink, otlp_sink
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.catalogue.telemetry import (
    METRIC_CONSUMED,
    METRIC_LAG,
    METRIC_LAG_WINDOW_MAX,
    METRIC_TRACE_DEFERRED,
    METRIC_TRACE_SUPPRESSED,
)
from tidegate.core.records import StageTiming
from tidegate.runtime.config import TelemetryConfig
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry import Telemetry, is_sampled, open_telemetry
from tidegate.runtime.telemetry_export import DEFERRED_PER_S_MAX, resource_of

pytestmark = pytest.mark.integration


def opened(endpoint: str, *, ratio: float = 1.0, period_s: float = 10.0) -> Telemetry:
    config = TelemetryConfig(otlp_endpoint=endpoint, sample_ratio=ratio, metric_period_s=period_s)
    return open_telemetry(config, service="learner", instance="learner", run="test-run")


def test_one_trace_runs_from_the_promised_root_to_the_last_child() -> None:
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint)
        root = telemetry.root()
        leased = telemetry.emit("task.lease", parent=root, started_at_s=1.0, finished_at_s=2.0, as_root=True)
        generated = telemetry.emit("trajectory.generate", parent=leased, started_at_s=2.0, finished_at_s=3.0)
        telemetry.emit("trajectory.consume", parent=generated, started_at_s=3.0, finished_at_s=4.0)
        telemetry.close()
    lease, generate, consume = (
        sink.span(name) for name in ("task.lease", "trajectory.generate", "trajectory.consume")
    )
    assert root == leased
    assert root[3:35] == lease.trace_id.hex() == generate.trace_id.hex() == consume.trace_id.hex()
    assert lease.parent_span_id == b""
    assert generate.parent_span_id == lease.span_id
    assert consume.parent_span_id == generate.span_id
    assert (generate.start_time_unix_nano, generate.end_time_unix_nano) == (2 * 10**9, 3 * 10**9)


def test_a_step_keeps_more_links_than_the_default_limit() -> None:
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint)
        links = [(telemetry.root(), {"tidegate.policy.lag": number}) for number in range(300)]
        telemetry.emit("learner.step", parent=telemetry.root(), started_at_s=1, finished_at_s=2, links=links)
        telemetry.close()
    assert len(sink.span("learner.step").links) == 300


def test_an_unsampled_trace_is_written_only_when_it_turns_out_to_matter() -> None:
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint, ratio=0.0)
        root = telemetry.root()
        assert not is_sampled(root)
        assert telemetry.emit("trajectory.generate", parent=root, started_at_s=1, finished_at_s=2) == root
        telemetry.emit(
            "store.append", parent=root, started_at_s=1, finished_at_s=2, deferred=True, error="stale"
        )
        telemetry.close()
    [span] = sink.spans
    assert span.trace_id.hex() == root[3:35]
    assert {item.key for item in span.attributes} == {"tidegate.trace.deferred"}


def test_service_that_stops_does_not_wait_for_a_collector_that_is_away() -> None:
    telemetry = opened(f"127.0.0.1:{free_port()}")
    for _ in range(20_000):  # forty batches, for each of which the SDK tries for five seconds
        telemetry.emit("trajectory.generate", parent=telemetry.root(), started_at_s=1.0, finished_at_s=2.0)
    closing = threading.Thread(target=telemetry.close, daemon=True)
    closing.start()
    closing.join(timeout=60.0)
    assert not closing.is_alive()


def test_deferred_traces_are_rate_limited() -> None:
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint, ratio=0.0)
        asked = int(DEFERRED_PER_S_MAX) * 4
        allowed = sum(telemetry.may_defer() for _ in range(asked))
        telemetry.close()
    assert DEFERRED_PER_S_MAX <= allowed < DEFERRED_PER_S_MAX * 3
    [deferred] = sink.metric(METRIC_TRACE_DEFERRED).sum.data_points
    [suppressed] = sink.metric(METRIC_TRACE_SUPPRESSED).sum.data_points
    assert (deferred.as_double, suppressed.as_double) == (allowed, asked - allowed)


def test_an_unsampled_trace_is_rebuilt_whole_from_the_record_of_its_stages() -> None:
    stages = (
        StageTiming("task.lease", "task_queue", 1.0, 2.0),
        StageTiming("trajectory.generate", "actor-0", 2.0, 3.0),
    )
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint, ratio=0.0)
        root = telemetry.root()
        last = telemetry.rebuild(stages, parent=root, attributes={"tidegate.trajectory.id": "t-1"})
        telemetry.close()
    lease, generate = sink.span("task.lease"), sink.span("trajectory.generate")
    assert (lease.trace_id.hex(), lease.span_id.hex()) == (root[3:35], root[36:52])
    assert lease.parent_span_id == b""
    assert generate.parent_span_id == lease.span_id
    assert last == f"00-{generate.trace_id.hex()}-{generate.span_id.hex()}-01"
    assert {"tidegate.worker", "tidegate.trace.deferred"} <= {item.key for item in generate.attributes}


def test_an_exemplar_leads_to_the_span_it_was_observed_in_and_is_sent_once() -> None:
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint, period_s=0.1)
        root = telemetry.root()
        telemetry.observe(METRIC_LAG, 3, trace_parent=root)
        telemetry.observe(METRIC_LAG, 3, trace_parent=root[:-1] + "0")
        telemetry.observe(METRIC_LAG, 1)
        while len([metric for metric in sink.metrics if metric.name == METRIC_LAG]) < 3:
            time.sleep(0.05)
        telemetry.close()
    exports = [metric for metric in sink.metrics if metric.name == METRIC_LAG]
    found = [
        exemplar
        for metric in exports
        for point in metric.histogram.data_points
        for exemplar in point.exemplars
    ]
    [exemplar] = found
    assert (exemplar.as_double, exemplar.trace_id.hex(), exemplar.span_id.hex()) == (
        3.0,
        root[3:35],
        root[36:52],
    )
    assert exports[-1].histogram.data_points[0].count == 3


def test_largest_value_of_a_window_is_reported_once() -> None:
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint, period_s=60.0)
        for lag in (1, 4, 2):
            telemetry.observe(METRIC_LAG_WINDOW_MAX, lag)
        telemetry.close()
    [point] = sink.metric(METRIC_LAG_WINDOW_MAX).gauge.data_points
    assert point.as_double == 4


def test_the_statistics_board_is_exported_as_metrics() -> None:
    board = StatsBoard(service="trajectory_store", instance="trajectory_store", started_at_s=0.0)
    board.set(store_stats.ACCEPTED, 7)
    board.set(store_stats.DROPPED, 2)
    board.set(store_stats.DROPPED_BECAUSE.member("stale"), 2)
    board.set(process.RSS_MB, 3)
    with otlp_sink() as sink:
        telemetry = open_telemetry(
            TelemetryConfig(otlp_endpoint=sink.endpoint),
            service="trajectory_store",
            instance="trajectory_store",
            run="test-run",
            board=board,
        )
        telemetry.close()
    [appended] = sink.metric("tidegate.trajectory.appended").sum.data_points
    [dropped] = sink.metric("tidegate.trajectory.dropped").sum.data_points
    [memory] = sink.metric("process.memory.usage").gauge.data_points
    assert (appended.as_double, dropped.as_double, memory.as_double) == (7, 2, 3e6)
    labels = {item.key: item.value.string_value for item in dropped.attributes}
    assert labels == {"tidegate.run.id": "test-run", "tidegate.drop.reason": "stale"}


def test_statistic_that_was_cleared_is_exported_no_more() -> None:
    board = StatsBoard(service="learner", instance="learner", started_at_s=0.0)
    board.set(learner_stats.MEAN_REWARD, 0.7)
    board.set(learner_stats.VERSION_STEP, 1)
    with otlp_sink() as sink:
        telemetry = open_telemetry(
            TelemetryConfig(otlp_endpoint=sink.endpoint, metric_period_s=0.2),
            service="learner",
            instance="learner",
            run="test-run",
            board=board,
        )
        wait_for(lambda: "tidegate.learner.mean_reward" in last_export(sink))
        board.clear(learner_stats.MEAN_REWARD)
        telemetry.close()
    assert "tidegate.learner.policy_version" in last_export(sink)
    assert "tidegate.learner.mean_reward" not in last_export(sink)


def last_export(sink: OtlpSink) -> set[str]:
    """The names of its metrics, of which an export has each once, in the same order as every other."""
    names: set[str] = set()
    for metric in reversed(list(sink.metrics)):
        if metric.name in names:
            break
        names.add(metric.name)
    return names


def test_pod_identifies_itself_in_resource_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_POD_UID", "0c5d")
    monkeypatch.setenv("TIDEGATE_POD_NAME", "run-actor-7f9")
    found = resource_of(service="actor", instance="actor-0", run="test-run").attributes
    assert found["service.name"] == "tidegate-actor"
    # Legends show it, so the pod's name and not its uid.
    assert found["service.instance.id"] == "run-actor-7f9"
    assert found["k8s.pod.uid"] == "0c5d"
    assert "k8s.node.name" not in found


def test_metrics_of_a_pod_carry_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run id is unique within a namespace only."""
    monkeypatch.setenv("TIDEGATE_NAMESPACE", "team-a")
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint)
        telemetry.count(METRIC_CONSUMED, 3)
        telemetry.close()
    [counted] = sink.metric(METRIC_CONSUMED).sum.data_points
    labels = {item.key: item.value.string_value for item in counted.attributes}
    assert labels == {"tidegate.run.id": "test-run", "namespace": "team-a"}


def test_counters_histograms_and_gauges_arrive_with_their_run() -> None:
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint)
        telemetry.count(METRIC_CONSUMED, 3)
        telemetry.observe(METRIC_LAG, 2)
        telemetry.observe(learner_stats.VERSION_STEP.metric, 16)
        telemetry.observe(learner_stats.VERSION_STEP.metric, 17)
        telemetry.close()
    [counted] = sink.metric(METRIC_CONSUMED).sum.data_points
    [observed] = sink.metric(METRIC_LAG).histogram.data_points
    [version] = sink.metric(learner_stats.VERSION_STEP.metric).gauge.data_points
    assert counted.as_double == 3 or counted.as_int == 3
    assert list(observed.explicit_bounds)[:3] == [0.0, 1.0, 2.0]
    assert observed.bucket_counts[2] == 1
    assert version.as_double == 17 or version.as_int == 17
    assert {item.key for item in version.attributes} == {"tidegate.run.id"}


def test_export_that_fails_for_whatever_reason_is_logged_and_the_next_one_has_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    export: Callable[..., MetricExportResult] = cast("Any", OTLPMetricExporter).export
    failures = iter([RuntimeError("dictionary changed size during iteration")])

    def failing_once(exporter: OTLPMetricExporter, metrics: MetricsData) -> MetricExportResult:
        for failure in failures:
            raise failure
        return export(exporter, metrics)

    monkeypatch.setattr(OTLPMetricExporter, "export", failing_once)
    with otlp_sink() as sink, capture_logs() as logged:
        telemetry = opened(sink.endpoint, period_s=0.1)
        telemetry.count(METRIC_CONSUMED, 3)
        wait_for(lambda: METRIC_CONSUMED in last_export(sink))
        telemetry.close()
    assert [line["event"] for line in logged] == ["metrics_not_exported"]
    [counted] = sink.metric(METRIC_CONSUMED).sum.data_points
    assert counted.as_double == 3


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come"
        time.sleep(0.02)


def test_missing_collector_stops_no_service() -> None:
    telemetry = opened("127.0.0.1:9")
    for _ in range(100):
        telemetry.emit("task.lease", parent=telemetry.root(), started_at_s=1.0, finished_at_s=2.0)


def test_without_an_endpoint_the_sdk_is_never_imported() -> None:
    code = (
        "import sys\n"
        "from tidegate.runtime.config import TelemetryConfig\n"
        "from tidegate.runtime.telemetry import open_telemetry\n"
        "t = open_telemetry(TelemetryConfig(), service='actor', instance='actor-0', run='r')\n"
        "p = t.root()\n"
        "assert len(p) == 55 and t.emit('x', parent=p, started_at_s=0, finished_at_s=1) == p\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={})
