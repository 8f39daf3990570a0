"""Statistics of the trajectory store."""

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text
from tidegate.catalogue.telemetry import (
    ATTR_QUEUE,
    ATTR_REASON,
    ATTR_STATE,
    METRIC_QUARANTINED,
    METRIC_QUEUE_DEPTH,
    METRIC_WORKER_TIME,
)

ACCEPTED = Counter(
    "accepted_total",
    "{trajectory}",
    "Trajectories accepted into the ledger.",
    exported="tidegate.trajectory.appended",
)
TRAINED = Counter("trained_total", "{trajectory}", "Trajectories committed as trained.", exported=False)
DROPPED = Counter(
    "dropped_total", "{trajectory}", "Trajectories that ended without training.", exported=False
)
DROPPED_BECAUSE = Family(
    Counter,
    "dropped_*_total",
    "{trajectory}",
    "Trajectories that ended without training, by reason.",
    label=ATTR_REASON,
    exported="tidegate.trajectory.dropped",
)
DUPLICATES = Counter(
    "duplicates_total",
    "{trajectory}",
    "Trajectories that arrived again or after their end, and were ignored.",
    exported="tidegate.trajectory.duplicates",
)
REVIVED = Counter(
    "revived_total",
    "{trajectory}",
    "Trajectories made available again because the learner restored an earlier checkpoint.",
    exported="tidegate.trajectory.revived",
)
QUARANTINED = Counter(
    "quarantined_total",
    "{message}",
    "Invalid messages moved to the QUARANTINE stream.",
    exported=METRIC_QUARANTINED.of({}),
    from_zero=True,
)
AVAILABLE_TRAJECTORIES = Gauge(
    "available_trajectories",
    "{trajectory}",
    "Trajectories ready for the learner.",
    exported=METRIC_QUEUE_DEPTH.of({ATTR_QUEUE: "store"}),
)
LEASED_TRAJECTORIES = Gauge(
    "leased_trajectories",
    "{trajectory}",
    "Trajectories leased to a learner and not yet committed.",
    exported="tidegate.lease.active",
)
RESIDENT_BYTES = Gauge(
    "resident_bytes",
    "By",
    "Payload of trajectories that are neither trained nor dropped.",
    exported="tidegate.store.resident.size",
)
UPLOADS_BYTES = Gauge(
    "uploads_bytes",
    "By",
    "Uploaded payloads whose reference has not arrived.",
    exported="tidegate.store.uploads.size",
)
FULL_S = Counter(
    "full_s_total",
    "s",
    "Time in which the store was full and accepted nothing.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "full"}),
)
HEAD = Text("head", "Newest version that the store knows.", exported=False)
