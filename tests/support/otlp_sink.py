"""An OTLP/gRPC receiver in the test's own process: keeps every span and metric that it receives."""

from collections.abc import Generator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tidegate.runtime import telemetry_export

TIMEOUT_S = 60


@dataclass
class OtlpSink:
    """What arrived so far. Exports accumulate: an exemplar or a span is sent once only."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list[Span])
    metrics: list[Metric] = field(default_factory=list[Metric])

    def span(self, name: str) -> Span:
        """The one span of that name."""
        [found] = [span for span in self.spans if span.name == name]
        return found

    def metric(self, name: str) -> Metric:
        """The newest export of a metric."""
        return [metric for metric in self.metrics if metric.name == name][-1]

    def Export(self, request: Any, context: object) -> Any:  # named by the protocol
        """Receive traces or metrics."""
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
            return trace_service_pb2.ExportTraceServiceResponse()
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics.extend(scope.metrics)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextmanager
def otlp_sink() -> Generator[OtlpSink, None, None]:
    """A sink on a free loopback port, to which exporters that are opened meanwhile send all that they have."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    sink = OtlpSink()
    cast("Any", trace_service_pb2_grpc).add_TraceServiceServicer_to_server(sink, server)
    cast("Any", metrics_service_pb2_grpc).add_MetricsServiceServicer_to_server(sink, server)
    sink.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    # A service that stops gives its exporter seconds, which a busy machine may need for a first connection.
    with pytest.MonkeyPatch.context() as patched:
        for limit in ("EXPORT_TIMEOUT_S", "CLOSE_TIMEOUT_S", "CLOSE_TIMEOUT_UNREACHABLE_S"):
            patched.setattr(telemetry_export, limit, TIMEOUT_S)
        yield sink
    server.stop(grace=None)
