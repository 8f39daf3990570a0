"""Telemetry: one trace a trajectory, spans written after the fact, metrics from one catalogue.

Spans are emitted when a piece of work is done, with its actual start and end: no context managers around hot
loops, and an unsampled trace costs one comparison. A share of the traces is sampled from the first span on; the trace
of a trajectory that is dropped or late is rebuilt from its provenance afterwards. Nothing of the SDK is
imported unless an endpoint is configured. Trace context is a W3C ``traceparent`` text; only its lowest bit is read.
"""

import os
import random
from collections.abc import Sequence
from typing import Any, Literal

from tidegate.catalogue.kinds import Instrument
from tidegate.catalogue.telemetry import (
    ATTR_BATCH_COUNT,
    ATTR_DEFERRED,
    ATTR_RPC_METHOD,
    ATTR_RPC_STATUS,
    ATTR_STREAM,
    ATTR_WORKER,
    METRIC_RPC_DURATION,
    SPAN_TASK_LEASE,
)
from tidegate.core.records import StageTiming
from tidegate.runtime.config import TelemetryConfig
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.telemetry_port import Attributes, Exporter, Link, SpanKind


class Telemetry:
    """The interface for spans and metrics; everything is a cheap no-op while ``enabled`` is false."""

    def __init__(
        self, config: TelemetryConfig, *, exporter: Exporter | None, seed: int | None = None
    ) -> None:
        """``seed`` fixes trace ids in tests; otherwise they come from the operating system."""
        self._config = config
        self._exporter = exporter
        # Own generator: the global one may be seeded by a training run, and would repeat trace ids across processes.
        self._random = random.Random(seed if seed is not None else os.urandom(16))

    @property
    def enabled(self) -> bool:
        """Whether anything is exported."""
        return self._exporter is not None

    def root(self, *, wanted: bool = False) -> str:
        """A new trace context; sampled with the configured ratio when telemetry is on, or because it is ``wanted``."""
        sampled = self.enabled and (wanted or self._random.random() < self._config.sample_ratio)
        return f"00-{self._random.getrandbits(128) or 1:032x}-{self._random.getrandbits(64) or 1:016x}-0{int(sampled)}"

    def emit(
        self,
        name: str,
        *,
        parent: str,
        started_at_s: float,
        finished_at_s: float,
        attributes: Attributes | None = None,
        links: Sequence[Link] = (),
        kind: SpanKind = "internal",
        error: str = "",
        as_root: bool = False,
        deferred: bool = False,
    ) -> str:
        """Write one finished span and return its context, to be the next span's parent.

        ``as_root`` makes the span carry the very ids of ``parent`` (the first span of a trace). ``deferred`` writes
        it even though the trace was not sampled; ask ``may_defer`` first, once a trace.
        Returns ``parent`` when nothing was written.
        """
        exporter = self._exporter
        if exporter is None or not (deferred or is_sampled(parent)):
            return parent
        extra: dict[str, Any] = dict(attributes or {})
        if deferred:
            extra[ATTR_DEFERRED] = True
        return exporter.emit(
            name,
            parent=parent,
            started_at_s=started_at_s,
            finished_at_s=finished_at_s,
            attributes=extra,
            links=[(context, linked) for context, linked in links if is_sampled(context)],
            kind=kind,
            error=error,
            as_root=as_root,
        )

    def may_defer(self) -> bool:
        """Whether one more unsampled trace may be written now; counted either way."""
        return self._exporter is not None and self._exporter.may_defer()

    def rebuild(self, stages: Sequence[StageTiming], *, parent: str, attributes: Attributes) -> str:
        """Write the spans of an unsampled trace from the record of its stages; returns the last one's context."""
        context = parent
        for stage in stages:
            context = self.emit(
                stage.stage,
                parent=context,
                started_at_s=stage.started_at_s,
                finished_at_s=stage.finished_at_s,
                attributes={**attributes, ATTR_WORKER: stage.worker},
                as_root=stage.stage == SPAN_TASK_LEASE,
                deferred=True,
            )
        return context

    def count(self, name: Instrument, value: float = 1, attributes: Attributes | None = None) -> None:
        """Add to a counter of the catalogue."""
        if self._exporter is not None:
            self._exporter.count(name, value, attributes or {})

    def observe(
        self, name: Instrument, value: float, attributes: Attributes | None = None, *, trace_parent: str = ""
    ) -> None:
        """Record into a histogram or set a gauge of the catalogue.

        ``trace_parent``: the span that the value was observed in; when it was written, it becomes an exemplar.
        """
        if self._exporter is not None:
            self._exporter.observe(name, value, attributes or {}, trace_parent)

    def served(self, method: str, seconds: float, status: str) -> None:
        """One gRPC call was answered; long polls count for as long as they were held."""
        if self._exporter is not None:
            labels = {ATTR_RPC_METHOD: method, ATTR_RPC_STATUS: status}
            self._exporter.observe(METRIC_RPC_DURATION, seconds, labels, "")

    def close(self) -> None:
        """Flush within the exporter's own deadline."""
        if self._exporter is not None:
            self._exporter.close()


def messaging(operation: Literal["send", "process"], stream: str, *, batch: int = 1) -> Attributes:
    """Attributes of a span that sends to a stream or processes its message, by OpenTelemetry's conventions."""
    return {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        ATTR_STREAM: stream,
        ATTR_BATCH_COUNT: batch,
    }


def is_sampled(trace_parent: str) -> bool:
    """Whether a ``traceparent`` has its sampled bit set; an empty or malformed one has not."""
    try:
        return bool(int(trace_parent[-2:], 16) & 1) and len(trace_parent) == 55
    except ValueError:
        return False


def open_telemetry(
    config: TelemetryConfig, *, service: str, instance: str, run: str, board: StatsBoard | None = None
) -> Telemetry:
    """Telemetry as configured; an endpoint in ``OTEL_EXPORTER_OTLP_ENDPOINT`` counts when the run file has none.

    ``board``: statistics that are exported as metrics, in addition to observed ones.
    """
    endpoint = config.otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if not endpoint or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Telemetry(config, exporter=None)
    from tidegate.runtime.telemetry_export import OtlpExporter  # heavy, and needed only with an endpoint

    exporter = OtlpExporter(
        endpoint,
        service=service,
        instance=instance,
        run=run,
        metric_period_s=config.metric_period_s,
        board=board,
    )
    return Telemetry(config, exporter=exporter)
