"""Statistics of the inference service."""

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text
from tidegate.catalogue.telemetry import (
    ATTR_OPERATION,
    ATTR_REASON,
    ATTR_STATE,
    METRIC_RETRIES,
    METRIC_WORKER_TIME,
)

STEPS = Counter(
    "inference_steps_total",
    "{step}",
    "Environment steps for which actions were answered.",
    exported="tidegate.inference.steps",
)
REQUESTS = Counter(
    "inference_requests_total",
    "{request}",
    "Requests answered, each one step of an actor's environments.",
    exported="tidegate.inference.requests",
)
BATCHES = Counter(
    "inference_batches_total", "{batch}", "Calls of the network.", exported="tidegate.inference.batches"
)
BATCH_ROWS = Gauge(
    "inference_batch_rows",
    "{step}",
    "Environments in a call of the network, mean of about the last 64 calls.",
    exported="tidegate.inference.batch_size",
)
WAIT_MS = Gauge(
    "inference_wait_ms",
    "ms",
    "Time from a request's arrival to its call of the network, mean of about the last 64 calls.",
    exported="tidegate.inference.wait",
)
WAITED_S = Counter(
    "inference_waited_s_total",
    "s",
    "Time from the arrival of requests to their call of the network.",
    exported="tidegate.inference.waited",
)
REFUSED_BECAUSE = Family(
    Counter,
    "inference_refused_*_total",
    "{request}",
    "Messages of actors that were refused, by reason: size, not_finite, order, opening, full.",
    label=ATTR_REASON,
    exported="tidegate.inference.refused",
)
STREAMS = Gauge(
    "inference_streams", "{stream}", "Actors with an open stream.", exported="tidegate.inference.streams"
)
SERVING_STEP = Gauge(
    "inference_step",
    "{version}",
    "Policy version that acts, as the step of its lineage.",
    exported="tidegate.inference.policy_version",
)
SERVING_VERSION = Text("inference_version", "Policy version that acts, with its lineage.", exported=False)
PULL_MS = Gauge(
    "inference_pull_ms", "ms", "Time to load the newest version.", exported="tidegate.inference.load"
)
POLICIES_REFUSED = Counter(
    "inference_policies_refused_total",
    "{version}",
    "Versions that the inference service could not load.",
    exported="tidegate.inference.policies_refused",
    from_zero=True,
)
PULL_RETRIES = Counter(
    "inference_pull_retries_total",
    "{retry}",
    "Pulls of weights repeated after a transient failure.",
    exported=METRIC_RETRIES.of({ATTR_OPERATION: "pull_weights"}),
)
BUSY_S = Counter(
    "busy_s_total", "s", "Time in the network.", exported=METRIC_WORKER_TIME.of({ATTR_STATE: "busy"})
)
