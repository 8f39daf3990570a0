"""Statistics of weight distribution."""

from tidegate.catalogue.kinds import Counter, Gauge, Text
from tidegate.catalogue.telemetry import ATTR_KIND, METRIC_QUARANTINED, METRIC_WEIGHTS_BYTES

PUBLISHED = Counter(
    "published_total", "{version}", "Versions published.", exported="tidegate.weights.published"
)
PUBLISHED_BYTES = Counter(
    "published_bytes_total",
    "By",
    "Bytes of weights published.",
    exported=METRIC_WEIGHTS_BYTES.of({ATTR_KIND: "published"}),
)
PULLED = Counter("pulled_total", "{pull}", "Pulls of weights answered.", exported="tidegate.weights.pulled")
PULLED_BYTES = Counter(
    "pulled_bytes_total",
    "By",
    "Bytes of weights pulled.",
    exported=METRIC_WEIGHTS_BYTES.of({ATTR_KIND: "pulled"}),
)
REANNOUNCED = Counter(
    "reannounced_total",
    "{announcement}",
    "Announcements repeated after the broker lost them.",
    exported="tidegate.weights.reannounced",
)
QUARANTINED = Counter(
    "quarantined_total",
    "{message}",
    "Messages on POLICY that are no announcement of this run, moved to the QUARANTINE stream.",
    exported=METRIC_QUARANTINED.of({}),
    from_zero=True,
)
HEAD_STEP = Gauge("head_step", "{version}", "Newest published version.", exported="tidegate.weights.head")
HEAD = Text("head", "Newest published version, with its lineage.", exported=False)
KEPT_VERSIONS = Gauge(
    "kept_versions", "{version}", "Versions available for pulling.", exported="tidegate.weights.kept"
)
DISK_BYTES = Gauge(
    "disk_bytes", "By", "Disk space of the kept versions.", exported="tidegate.weights.disk.size"
)
