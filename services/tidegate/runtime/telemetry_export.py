"""Spans and metrics over OTLP/gRPC: the OpenTelemetry SDK, loaded only when an endpoint is configured."""

import os
import secrets
import threading
import time
from importlib.metadata import version
from typing import Any, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tidegate.catalogue.telemetry import (
    ATTR_NAMESPACE,
    ATTR_RUN,
    METRIC_TRACE_DEFERRED,
    METRIC_TRACE_SUPPRESSED,
)
from tidegate.runtime.board_metrics import readings
from tidegate.runtime.failure_log import FailureLog
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry_metrics import Metric, MetricTable, Series
from tidegate.runtime.telemetry_port import Attributes, Link

# The SDK's default of 128 links truncates a learner step's batch silently.
LINKS_MAX = 4096
SPAN_QUEUE_MAX = 32_768
# Traces rebuilt for dropped trajectories, per second; in an incident every trajectory may be one.
DEFERRED_PER_S_MAX = 50.0
EXPORT_TIMEOUT_S = 5
CLOSE_TIMEOUT_S = 3.0
# For a collector that did not take the last metrics: a service that stops does not wait for it again.
CLOSE_TIMEOUT_UNREACHABLE_S = 0.2
FIRST_EXPORT_S = 1.0
_KINDS = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
# Environment variables that describe the pod, by resource attribute.
_POD = {
    "k8s.pod.uid": "TIDEGATE_POD_UID",
    "k8s.pod.name": "TIDEGATE_POD_NAME",
    "k8s.node.name": "TIDEGATE_NODE_NAME",
    "k8s.namespace.name": "TIDEGATE_NAMESPACE",
    "k8s.cluster.name": "TIDEGATE_CLUSTER_NAME",
}


class _Ids(IdGenerator):
    """Random ids from the operating system, or the ids reserved for a root span."""

    def __init__(self) -> None:
        self.promised: SpanContext | None = None

    def generate_trace_id(self) -> int:
        """The reserved trace id, else a new one."""
        return self.promised.trace_id if self.promised is not None else secrets.randbits(128) or 1

    def generate_span_id(self) -> int:
        """The reserved span id, else a new one."""
        return self.promised.span_id if self.promised is not None else secrets.randbits(64) or 1


class OtlpExporter:
    """Spans and metrics over OTLP/gRPC. Queues are bounded; without a collector the oldest spans are dropped first."""

    def __init__(
        self,
        endpoint: str,
        *,
        service: str,
        instance: str,
        run: str,
        metric_period_s: float,
        board: StatsBoard | None,
    ) -> None:
        """Connect lazily: a missing collector costs retries in a background thread and nothing else."""
        self._resource = resource_of(service=service, instance=instance, run=run)
        insecure = not endpoint.startswith("https://")
        self._ids = _Ids()
        self._tracers = TracerProvider(
            resource=self._resource,
            sampler=ALWAYS_ON,
            id_generator=self._ids,
            span_limits=SpanLimits(max_links=LINKS_MAX),
            shutdown_on_exit=False,
        )
        self._spans = OTLPSpanExporter(endpoint=endpoint, insecure=insecure, timeout=EXPORT_TIMEOUT_S)
        self._tracers.add_span_processor(BatchSpanProcessor(self._spans, max_queue_size=SPAN_QUEUE_MAX))
        self._tracer = self._tracers.get_tracer("tidegate")
        self._table = MetricTable()
        self._metrics = _MetricLoop(
            OTLPMetricExporter(endpoint=endpoint, insecure=insecure, timeout=EXPORT_TIMEOUT_S),
            self._table,
            resource=self._resource,
            period_s=metric_period_s,
            board=board,
        )
        self._tokens = DEFERRED_PER_S_MAX
        self._refilled_at_s = time.monotonic()
        for name in (METRIC_TRACE_DEFERRED, METRIC_TRACE_SUPPRESSED):
            self._table.add(name, 0.0, {})
        self._metrics.start()

    def may_defer(self) -> bool:
        """Take a token of the deferred-trace bucket; it refills at ``DEFERRED_PER_S_MAX`` a second."""
        now_s = time.monotonic()
        refill = (now_s - self._refilled_at_s) * DEFERRED_PER_S_MAX
        self._tokens = min(DEFERRED_PER_S_MAX, self._tokens + refill)
        self._refilled_at_s = now_s
        if self._tokens < 1.0:
            self._table.add(METRIC_TRACE_SUPPRESSED, 1.0, {})
            return False
        self._tokens -= 1.0
        self._table.add(METRIC_TRACE_DEFERRED, 1.0, {})
        return True

    def emit(
        self,
        name: str,
        *,
        parent: str,
        started_at_s: float,
        finished_at_s: float,
        attributes: Attributes,
        links: list[Link],
        kind: str,
        error: str,
        as_root: bool,
    ) -> str:
        """Write one finished span; returns its ``traceparent``."""
        origin = _span_context(parent)
        context = Context() if as_root else trace.set_span_in_context(NonRecordingSpan(origin), Context())
        self._ids.promised = origin if as_root else None
        try:
            span = self._tracer.start_span(
                name,
                context=context,
                kind=_KINDS[kind],
                attributes=dict(attributes),
                links=[trace.Link(_span_context(linked), dict(of)) for linked, of in links],
                start_time=int(started_at_s * 1e9),
            )
        finally:
            self._ids.promised = None
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_time=int(finished_at_s * 1e9))
        own = span.get_span_context()
        return f"00-{own.trace_id:032x}-{own.span_id:016x}-01"

    def count(self, name: str, value: float, attributes: Attributes) -> None:
        """Add to a counter."""
        self._table.add(name, value, attributes)

    def observe(self, name: str, value: float, attributes: Attributes, trace_parent: str) -> None:
        """Record into a histogram, or set a gauge."""
        self._table.put(name, value, attributes, trace_parent)

    def close(self) -> None:
        """Flush both pipelines, within ``CLOSE_TIMEOUT_S`` together; what is not sent by then is lost.

        Without a collector and with a full queue, the SDK's ``force_flush`` takes minutes and its ``shutdown`` one.
        """
        timeout_s = CLOSE_TIMEOUT_S if self._metrics.reachable else CLOSE_TIMEOUT_UNREACHABLE_S
        closed_at_s = time.monotonic() + timeout_s
        self._metrics.stop()
        flushing = threading.Thread(target=self._tracers.shutdown, name="spans", daemon=True)
        flushing.start()
        flushing.join(timeout=timeout_s)
        cast("Any", self._spans).shutdown()
        self._metrics.close(timeout_s=max(0.0, closed_at_s - time.monotonic()))


class _MetricLoop:
    """Sends the whole table once a period, cumulative since the start of the process, from a thread of its own.

    A failed export is not repeated: the next one contains all of it, whatever the failure was.
    """

    def __init__(
        self,
        exporter: OTLPMetricExporter,
        table: MetricTable,
        *,
        resource: Resource,
        period_s: float,
        board: StatsBoard | None,
    ) -> None:
        self._exporter = exporter
        self._table = table
        self._resource = resource
        self._source = metric_labels(resource)
        self._period_s = period_s
        self._board = board
        self._scope = InstrumentationScope("tidegate")
        self._started_at_ns = time.time_ns()
        # Whether the collector took the last export.
        self.reachable = True
        self._closed = threading.Event()
        self._note_failure = FailureLog("tidegate.telemetry", event="metrics_not_exported", label="exporter")
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)

    def start(self) -> None:
        """Start; the first export follows shortly, the next ones once a period."""
        self._thread.start()

    def stop(self) -> None:
        """Begin the last export."""
        self._closed.set()

    def close(self, *, timeout_s: float) -> None:
        """Wait for the last export, then give it up."""
        self._thread.join(timeout=timeout_s)
        cast("Any", self._exporter).shutdown()

    def _work(self) -> None:
        # The first one soon, so that a reader of increases sees the initial values.
        wait_s = min(FIRST_EXPORT_S, self._period_s)
        while not self._closed.wait(wait_s):
            self._try_export()
            wait_s = self._period_s
        self._try_export()

    def _try_export(self) -> None:
        """One export. A value or a label that cannot be encoded must not end all metrics of the process."""
        try:
            self._export()
        except Exception as error:
            self.reachable = False
            self._note_failure("otlp", error)

    def _export(self) -> None:
        now_ns = time.time_ns()
        # A new one each time: what was cleared on the board is in no further export.
        board_table = MetricTable()
        if self._board is not None:
            for reading in readings(self._board.snapshot(at_s=now_ns / 1e9)):
                board_table.put(reading.metric, reading.value, reading.labels)
        metrics = [
            found
            for table in (self._table, board_table)
            for metric in table.metrics.values()
            if metric.series and (found := self._of(metric, now_ns)) is not None
        ]
        result = cast("Any", self._exporter).export(  # its keyword arguments are untyped
            MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(self._scope, metrics, "")], "")])
        )
        self.reachable = result is MetricExportResult.SUCCESS

    def _of(self, metric: Metric, now_ns: int) -> SdkMetric | None:
        instrument = metric.instrument
        series = list(metric.series.values())
        match instrument.kind:
            case "histogram":
                data: Histogram | Sum | Gauge = Histogram(
                    [self._histogram_point(each, instrument.bounds, now_ns) for each in series],
                    AggregationTemporality.CUMULATIVE,
                )
            case "counter":
                data = Sum(
                    [self._number_point(each, now_ns) for each in series],
                    AggregationTemporality.CUMULATIVE,
                    is_monotonic=True,
                )
            case "gauge":
                data = Gauge([self._number_point(each, now_ns) for each in series])
            case "window_max":
                # The next window begins with its first observation; an empty one is not exported.
                fresh = [each for each in series if each.fresh]
                if not fresh:
                    return None
                data = Gauge([self._number_point(each, now_ns) for each in fresh])
                for each in fresh:
                    each.fresh = False
        return SdkMetric(metric.name, instrument.meaning, instrument.unit, data)

    def _number_point(self, series: Series, now_ns: int) -> NumberDataPoint:
        return NumberDataPoint(self._labels(series), self._started_at_ns, now_ns, series.value)

    def _histogram_point(self, series: Series, bounds: tuple[float, ...], now_ns: int) -> HistogramDataPoint:
        buckets = list(series.buckets)
        # Each is exported once: the next export has the exemplars of the next period.
        exemplars, series.exemplars = series.exemplars, {}
        return HistogramDataPoint(
            attributes=self._labels(series),
            start_time_unix_nano=self._started_at_ns,
            time_unix_nano=now_ns,
            count=sum(buckets),
            sum=series.total,
            bucket_counts=buckets,
            explicit_bounds=bounds,
            # Cumulative extremes describe no period, and Prometheus keeps none; None omits them.
            min=cast("float", None),
            max=cast("float", None),
            exemplars=[
                SdkExemplar({}, each.value, each.at_ns, each.span_id, each.trace_id)
                for each in exemplars.values()
            ],
        )

    def _labels(self, series: Series) -> dict[str, str | int | float | bool]:
        return {**self._source, **dict(series.labels)}


def resource_of(*, service: str, instance: str, run: str) -> Resource:
    """The source of telemetry: the service, its instance (a pod's name where there is one), and its location.

    The name, which legends show, and not the uid: a pod of a StatefulSet continues its series after a restart. It is
    unique within the namespace, which every metric carries (issue 18).
    """
    pod = {key: os.environ[name] for key, name in _POD.items() if os.environ.get(name)}
    return Resource.create(
        {
            "service.namespace": "tidegate",
            "service.name": f"tidegate-{service}",
            "service.version": version("tidegate"),
            "service.instance.id": pod.get("k8s.pod.name", instance),
            ATTR_RUN: run,
            **pod,
        }
    )


def metric_labels(resource: Resource) -> dict[str, str]:
    """What every data point carries: the run, and in a cluster its namespace, without which a run id is not unique.

    Resource attributes reach Prometheus only where a collector promotes them (issue 18).
    """
    found = {ATTR_RUN: str(resource.attributes[ATTR_RUN])}
    if namespace := resource.attributes.get("k8s.namespace.name"):
        found[ATTR_NAMESPACE] = str(namespace)
    return found


def _span_context(trace_parent: str) -> SpanContext:
    _, trace_id, span_id, _ = trace_parent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(1))
