"""The OpenTelemetry SDK behind ``Telemetry``: loaded only when an OTLP endpoint is configured."""

import secrets
import time
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tidegate.runtime.telemetry import DEFERRED_PER_S_MAX, Attributes, Link
from tidegate.runtime.telemetry_names import ATTR_RUN, INSTRUMENTS

_Labels = tuple[tuple[str, str | int | float | bool], ...]

# The SDK's default of 128 links truncates a learner step's batch without a word.
LINKS_MAX = 4096
SPAN_QUEUE_MAX = 32_768
EXPORT_TIMEOUT_S = 5
_KINDS = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}


class _Ids(IdGenerator):
    """Random ids from the operating system, or the ones a root span was promised."""

    def __init__(self) -> None:
        self.promised: SpanContext | None = None

    def generate_trace_id(self) -> int:
        """The promised trace id, else a fresh one."""
        return self.promised.trace_id if self.promised is not None else secrets.randbits(128) or 1

    def generate_span_id(self) -> int:
        """The promised span id, else a fresh one."""
        return self.promised.span_id if self.promised is not None else secrets.randbits(64) or 1


class Exporter:
    """Spans and metrics over OTLP/gRPC. Queues are bounded; when the collector is away the oldest spans go first."""

    def __init__(
        self, endpoint: str, *, service: str, instance: str, run: str, metric_period_s: float
    ) -> None:
        """Connect lazily: a missing collector costs retries in a background thread and nothing else."""
        resource = Resource.create(
            {
                "service.namespace": "tidegate",
                "service.name": f"tidegate-{service}",
                "service.instance.id": instance,
                ATTR_RUN: run,
            }
        )
        insecure = not endpoint.startswith("https://")
        self._run = run
        self._ids = _Ids()
        self._tracers = TracerProvider(
            resource=resource,
            sampler=ALWAYS_ON,
            id_generator=self._ids,
            span_limits=SpanLimits(max_links=LINKS_MAX),
            shutdown_on_exit=False,
        )
        self._tracers.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint=endpoint, insecure=insecure, timeout=EXPORT_TIMEOUT_S),
                max_queue_size=SPAN_QUEUE_MAX,
            )
        )
        self._tracer = self._tracers.get_tracer("tidegate")
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=endpoint, insecure=insecure, timeout=EXPORT_TIMEOUT_S),
            export_interval_millis=metric_period_s * 1000,
        )
        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(instrument.bounds))
            for name, instrument in INSTRUMENTS.items()
            if instrument.bounds
        ]
        # Spans are written after the fact, so no span is current and an exemplar would never name one.
        self._meters = MeterProvider(
            metric_readers=[reader],
            resource=resource,
            views=views,
            shutdown_on_exit=False,
            exemplar_filter=AlwaysOffExemplarFilter(),
        )
        meter = self._meters.get_meter("tidegate")
        # Sums and last values are kept here and read once an export: the SDK's own counter takes ten times as long to
        # add to, and is added to for every message.
        self._values: dict[str, dict[_Labels, float]] = {
            name: {} for name, instrument in INSTRUMENTS.items() if instrument.kind != "histogram"
        }
        self._histograms = {
            name: meter.create_histogram(name, unit=instrument.unit)
            for name, instrument in INSTRUMENTS.items()
            if instrument.kind == "histogram"
        }
        for name in self._values:
            instrument = INSTRUMENTS[name]
            create = (
                meter.create_observable_gauge
                if instrument.kind == "gauge"
                else meter.create_observable_counter
            )
            create(name, callbacks=[self._reader_of(name)], unit=instrument.unit)
        self._tokens = DEFERRED_PER_S_MAX
        self._refilled_at_s = time.monotonic()

    def may_defer(self) -> bool:
        """Take a token of the deferred-trace bucket; it refills at ``DEFERRED_PER_S_MAX`` a second."""
        now_s = time.monotonic()
        refill = (now_s - self._refilled_at_s) * DEFERRED_PER_S_MAX
        self._tokens = min(DEFERRED_PER_S_MAX, self._tokens + refill)
        self._refilled_at_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
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
        series = self._values[name]
        labels = self._labels(attributes)
        series[labels] = series.get(labels, 0.0) + value

    def observe(self, name: str, value: float, attributes: Attributes) -> None:
        """Record into a histogram, or set a gauge."""
        histogram = self._histograms.get(name)
        if histogram is not None:
            histogram.record(value, {ATTR_RUN: self._run, **attributes})
        else:
            self._values[name][self._labels(attributes)] = value

    def _labels(self, attributes: Attributes) -> _Labels:
        return tuple(sorted({ATTR_RUN: self._run, **attributes}.items()))

    def _reader_of(self, name: str) -> Callable[[CallbackOptions], list[Observation]]:
        def read(_options: CallbackOptions) -> list[Observation]:
            return [Observation(value, dict(labels)) for labels, value in list(self._values[name].items())]

        return read

    def close(self) -> None:
        """Flush both pipelines, at most a few seconds each."""
        self._tracers.force_flush(timeout_millis=3000)
        self._tracers.shutdown()
        self._meters.force_flush(timeout_millis=3000)
        self._meters.shutdown(timeout_millis=3000)


def _span_context(trace_parent: str) -> SpanContext:
    _, trace_id, span_id, _ = trace_parent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(1))
