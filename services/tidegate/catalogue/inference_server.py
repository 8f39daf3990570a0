"""Statistics of an actor's inference server."""

from tidegate.catalogue.kinds import Counter, Gauge
from tidegate.catalogue.telemetry import (
    ATTR_KIND,
    METRIC_SERVER_REQUESTS,
    METRIC_SERVER_UPDATES,
)

UPDATES = Counter(
    "server_updates_total",
    "{update}",
    "Weight updates that the inference server took.",
    exported=METRIC_SERVER_UPDATES.of({ATTR_KIND: "taken"}),
)
UPDATES_REFUSED = Counter(
    "server_updates_refused_total",
    "{update}",
    "Weight updates that failed, or whose probe differed too much.",
    exported=METRIC_SERVER_UPDATES.of({ATTR_KIND: "refused"}),
)
REQUESTS_KEPT = Counter(
    "server_requests_kept_total",
    "{request}",
    "Requests in flight that an update of the inference server kept.",
    exported=METRIC_SERVER_REQUESTS.of({ATTR_KIND: "kept"}),
)
STREAMS_CUT = Counter(
    "server_streams_cut_total",
    "{request}",
    "Requests in flight that an update of the inference server cut; they are resumed as new ones.",
    exported=METRIC_SERVER_REQUESTS.of({ATTR_KIND: "cut"}),
)
LOSSES = Counter(
    "server_losses_total",
    "{loss}",
    "Times that the inference server became unreachable.",
    exported="tidegate.inference_server.losses",
)
PAUSE_MS = Gauge(
    "server_pause_ms",
    "ms",
    "Pause of the inference server in its newest update.",
    exported="tidegate.inference_server.pause",
)
UPDATE_MS = Gauge(
    "server_update_ms",
    "ms",
    "Loading of weights within that pause.",
    exported="tidegate.inference_server.load",
)
PROBE_ERROR = Gauge(
    "server_probe_error",
    "",
    "Mean difference between the log-probabilities of the inference server and of the policy after the newest"
    " update, in nats.",
    exported="tidegate.inference_server.probe_error",
)
