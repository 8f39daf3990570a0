"""Statistics of environment workers."""

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text
from tidegate.catalogue.telemetry import (
    ATTR_OUTCOME,
    ATTR_REASON,
    ATTR_STAGE,
    ATTR_STATE,
    METRIC_QUARANTINED,
    METRIC_SESSIONS,
    METRIC_STAGE_ERRORS,
    METRIC_WORKER_TIME,
    SPAN_SCORE,
)

SCORED = Counter(
    "scored_total", "{trajectory}", "Trajectories scored.", exported="tidegate.environment.scored"
)
CACHE_HITS = Counter(
    "cache_hits_total",
    "{reward}",
    "Rewards answered from the cache.",
    exported="tidegate.environment.cache_hits",
)
VERDICTS = Counter(
    "verdicts_total",
    "{verdict}",
    "Verdicts of verifiers, failed and cached ones included.",
    exported="tidegate.environment.verdicts",
    from_zero=True,
)
VERIFIER_FAILURE = Text(
    "verifier_failure", "The most frequent failure of a verifier, with its place in the code.", exported=False
)
VERIFIER_FAILURES = Counter(
    "verifier_failures_total",
    "{error}",
    "Verdicts that no attempt produced.",
    exported=METRIC_STAGE_ERRORS.of({ATTR_STAGE: SPAN_SCORE}),
)
QUARANTINED = Counter(
    "quarantined_total",
    "{message}",
    "Invalid messages moved to the QUARANTINE stream.",
    exported=METRIC_QUARANTINED.of({}),
    from_zero=True,
)
DROPPED_BECAUSE = Family(
    Counter,
    "dropped_*_total",
    "{trajectory}",
    "Trajectories that the worker reported as dropped, by reason; the store exports all drops.",
    label=ATTR_REASON,
    exported=False,
)

BUSY_S = Counter(
    "busy_s_total", "s", "Time spent scoring.", exported=METRIC_WORKER_TIME.of({ATTR_STATE: "busy"})
)
WAIT_S = Counter(
    "wait_s_total",
    "s",
    "Time spent waiting for rollouts to score.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_rollout"}),
)
WAIT_LATENCY_S = Counter(
    "wait_latency_s_total",
    "s",
    "Time spent in the configured latency of scoring.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_latency"}),
)


SESSIONS = Gauge("sessions", "{session}", "Open tool sessions.", exported="tidegate.session.open")
SESSIONS_REFUSED = Counter(
    "sessions_refused_total",
    "{session}",
    "Tool sessions refused because the worker was full.",
    exported=METRIC_SESSIONS.of({ATTR_OUTCOME: "refused"}),
)
SESSIONS_IDLED = Counter(
    "sessions_idled_total",
    "{session}",
    "Tool sessions closed because they were idle for too long.",
    exported=METRIC_SESSIONS.of({ATTR_OUTCOME: "expired"}),
)
