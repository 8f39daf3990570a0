"""Statistics of the services that publish work: actors and environment workers."""

from tidegate.catalogue.kinds import Counter
from tidegate.catalogue.telemetry import ATTR_OPERATION, METRIC_RETRIES

UPLOADS = Counter(
    "uploads_total",
    "{upload}",
    "Payloads too large for a message, uploaded to the store and published by reference.",
    exported="tidegate.publish.uploads",
    from_zero=True,
)
PUBLISH_RETRIES = Counter(
    "publish_retries_total",
    "{retry}",
    "Publishes repeated after a transient failure.",
    exported=METRIC_RETRIES.of({ATTR_OPERATION: "publish"}),
    from_zero=True,
)
PUBLISH_BACKPRESSURE = Counter(
    "publish_backpressure_total",
    "{publish}",
    "Publishes repeated because the stream was full.",
    exported=False,
)
DROP_REPORT_RETRIES = Counter(
    "drop_report_retries_total",
    "{retry}",
    "Reports of dropped trajectories to the store repeated after a transient failure.",
    exported=METRIC_RETRIES.of({ATTR_OPERATION: "report_dropped"}),
)
