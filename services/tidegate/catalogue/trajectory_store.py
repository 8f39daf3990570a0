"""Statistics of the trajectory store."""

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text
from tidegate.catalogue.telemetry import (
    ATTR_QUEUE,
    ATTR_REASON,
    ATTR_SIDE,
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
LEASES_EXPIRED = Counter(
    "leases_expired_total",
    "{batch}",
    "Leases that ended because their learner did not renew them; their trajectories are available again.",
    exported="tidegate.lease.expired",
    from_zero=True,
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

# -- replay ------------------------------------------------------------------------------------------------------------

REPLAY_SIDES = ("actors", "learner")
REPLAY_STEPS = Gauge(
    "replay_steps", "{step}", "Steps that the replay buffer keeps.", exported="tidegate.replay.steps"
)
REPLAY_FILL = Gauge(
    "replay_fill", "1", "Share of the replay buffer's capacity in use.", exported="tidegate.replay.fill"
)
REPLAY_OPEN_UNITS = Gauge(
    "replay_open_units",
    "{unit}",
    "Units that may be drawn now: complete, inside the staleness budget and below their limit of uses.",
    exported="tidegate.replay.open_units",
)
REPLAY_INSERTED = Counter(
    "replay_inserted_total",
    "{unit}",
    "Units that segments completed.",
    exported="tidegate.replay.inserted",
)
REPLAY_SAMPLED = Counter(
    "replay_sampled_total",
    "{unit}",
    "Uses of units by updates of the surviving lineage, with those of batches that a learner holds.",
    exported="tidegate.replay.sampled",
)
REPLAY_SAMPLES_PER_INSERT = Gauge(
    "replay_samples_per_insert",
    "1",
    "Units drawn for each one inserted, since the run began.",
    exported="tidegate.replay.samples_per_insert",
)
REPLAY_PRIORITIES_REFUSED = Counter(
    "replay_priorities_refused_total",
    "{unit}",
    "Priorities that were refused because they are not finite, or negative.",
    exported="tidegate.replay.priorities.refused",
    from_zero=True,
)
REPLAY_PRIORITIES_IGNORED = Counter(
    "replay_priorities_ignored_total",
    "{unit}",
    "Priorities that arrived for units which were evicted meanwhile.",
    exported="tidegate.replay.priorities.ignored",
)
REPLAY_TORN = Counter(
    "replay_torn_total",
    "{segment}",
    "Segments whose bytes a crash or a power cut took from the replay buffer.",
    exported="tidegate.replay.torn",
    from_zero=True,
)
REPLAY_BYTES = Gauge(
    "replay_bytes", "By", "Size of the replay buffer's files.", exported="tidegate.replay.size"
)
REPLAY_WAIT = Text(
    "replay_wait", "Which side the replay limiter holds back, and why; empty for neither.", exported=False
)
REPLAY_WAIT_S = Family(
    Counter,
    "replay_wait_*_s_total",
    "s",
    "Time in which one side waited for the other at the replay buffer, by the side that waits.",
    label=ATTR_SIDE,
    exported="tidegate.replay.wait",
)
