"""The exporter as telemetry uses it, so that the OpenTelemetry SDK is imported only with an endpoint."""

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from tidegate.runtime.telemetry_metrics import Value

Attributes: TypeAlias = Mapping[str, Value]
Link: TypeAlias = tuple[str, Attributes]
SpanKind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]


class Exporter(Protocol):
    """Takes finished spans and values of metrics; must never block its caller."""

    def may_defer(self) -> bool:
        """Whether one more unsampled trace may be written now; counted either way."""
        ...

    def emit(
        self,
        name: str,
        *,
        parent: str,
        started_at_s: float,
        finished_at_s: float,
        attributes: Attributes,
        links: list[Link],
        kind: SpanKind,
        error: str,
        as_root: bool,
    ) -> str:
        """Write one finished span; returns its ``traceparent``."""
        ...

    def count(self, name: str, value: float, attributes: Attributes) -> None:
        """Add to a counter."""
        ...

    def observe(self, name: str, value: float, attributes: Attributes, trace_parent: str) -> None:
        """Record into a histogram, or set a gauge."""
        ...

    def close(self) -> None:
        """Flush within a deadline."""
        ...
