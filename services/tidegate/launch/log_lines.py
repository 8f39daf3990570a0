"""The format of a service's log: a line for each event, for a terminal or for a cluster's log store."""

import contextlib
import logging
import sys
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger


class LossyOutput:
    """An output that loses what its disk refuses: a full disk must not end a service in the middle of its work."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def write(self, text: str) -> int:
        """Write or lose ``text``."""
        with contextlib.suppress(OSError):
            self._output.write(text)
        return len(text)

    def flush(self) -> None:
        """Write or lose what is buffered, which is bounded by the buffer."""
        with contextlib.suppress(OSError):
            self._output.flush()


def log_plain_lines() -> None:
    """``timestamp=2026-01-31T12:00:00Z level=info event=service_ready key=value`` on standard output."""
    import structlog

    _configure(
        structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)
    )


def log_json_lines(*, service: str, instance: str, run: str) -> None:
    """A JSON object a line, with its origin (service, instance, run) and the trace of the current call."""
    import structlog

    from tidegate.runtime.authenticated_channel import trace_context

    origin = {"service": f"tidegate-{service}", "instance": instance, "run": run}

    def add_origin(_logger: "WrappedLogger", _method: str, event: "EventDict") -> "EventDict":
        event.update(origin)
        trace_parent = trace_context.get()
        if trace_parent:
            event["trace_id"] = trace_parent.split("-")[1]
        return event

    _configure(add_origin, structlog.processors.JSONRenderer())


def _configure(*last: "Processor") -> None:
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", LossyOutput(sys.stdout))),
    )
