"""Spans and metrics as a real OTLP receiver sees them."""

import subprocess
import sys

import pytest

from tests.support.otlp_sink import otlp_sink
from tidegate.runtime.config import TelemetryConfig
from tidegate.runtime.telemetry import DEFERRED_PER_S_MAX, Telemetry, is_sampled, open_telemetry
from tidegate.runtime.telemetry_names import METRIC_CONSUMED, METRIC_LAG, METRIC_LEARNER_VERSION

pytestmark = pytest.mark.integration


def opened(endpoint: str, *, ratio: float = 1.0) -> Telemetry:
    config = TelemetryConfig(otlp_endpoint=endpoint, sample_ratio=ratio)
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


def test_deferred_traces_are_rate_limited() -> None:
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint, ratio=0.0)
        for _ in range(int(DEFERRED_PER_S_MAX) * 4):
            telemetry.emit("dropped", parent=telemetry.root(), started_at_s=1, finished_at_s=2, deferred=True)
        telemetry.close()
    assert DEFERRED_PER_S_MAX <= len(sink.spans) < DEFERRED_PER_S_MAX * 3


def test_counters_histograms_and_gauges_arrive_with_their_run() -> None:
    with otlp_sink() as sink:
        telemetry = opened(sink.endpoint)
        telemetry.count(METRIC_CONSUMED, 3)
        telemetry.observe(METRIC_LAG, 2)
        telemetry.observe(METRIC_LEARNER_VERSION, 16)
        telemetry.observe(METRIC_LEARNER_VERSION, 17)
        telemetry.close()
    [counted] = sink.metric(METRIC_CONSUMED).sum.data_points
    [observed] = sink.metric(METRIC_LAG).histogram.data_points
    [version] = sink.metric(METRIC_LEARNER_VERSION).gauge.data_points
    assert counted.as_double == 3 or counted.as_int == 3
    assert list(observed.explicit_bounds)[:3] == [0.0, 1.0, 2.0]
    assert observed.bucket_counts[2] == 1
    assert version.as_double == 17 or version.as_int == 17
    assert {item.key for item in version.attributes} == {"tidegate.run.id"}


def test_a_missing_collector_does_not_stop_anybody() -> None:
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
