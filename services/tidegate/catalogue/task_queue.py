"""Statistics of the task queue."""

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text
from tidegate.catalogue.telemetry import (
    ATTR_BIN,
    ATTR_LENGTH,
    ATTR_STAGE,
    METRIC_STAGE_ERRORS,
    METRIC_STATS_REFUSED,
    SPAN_TASK_LEASE,
)

ADMITTED = Counter(
    "admitted_total",
    "{trajectory}",
    "Trajectories of the tasks admitted.",
    exported="tidegate.task.admitted",
)
IN_FLIGHT_TRAJECTORIES = Gauge(
    "in_flight_trajectories",
    "{trajectory}",
    "Trajectories admitted and neither trained nor dropped.",
    exported="tidegate.admission.inflight",
)
RUNNING_TRAJECTORIES = Gauge(
    "running_trajectories",
    "{trajectory}",
    "Trajectories of published tasks that are not yet in the store.",
    exported="tidegate.task.running",
)
UNANNOUNCED_TRAJECTORIES = Gauge(
    "unannounced_trajectories",
    "{trajectory}",
    "Trajectories trained in updates whose version is not yet announced.",
    exported="tidegate.task.unannounced",
)
BEHIND_VERSIONS = Gauge(
    "behind_versions",
    "{version}",
    "Versions announced since the oldest running rollout was admitted.",
    exported="tidegate.task.behind",
)
TASKS_PUBLISHED = Counter(
    "tasks_published_total", "{task}", "Tasks published to the broker.", exported="tidegate.task.published"
)
PUBLISH_FAILURES = Counter(
    "publish_failures_total",
    "{error}",
    "Tasks that the broker did not acknowledge; they are published again.",
    exported=METRIC_STAGE_ERRORS.of({ATTR_STAGE: SPAN_TASK_LEASE}),
)
STORE_FAILURES = Counter(
    "store_failures_total",
    "{error}",
    "Failed calls to the trajectory store for outcomes.",
    exported="tidegate.task_queue.store_failures",
)
UNKNOWN_OUTCOMES = Counter(
    "unknown_outcomes_total",
    "{trajectory}",
    "Outcomes of trajectories that the journal does not contain.",
    exported="tidegate.task_queue.unknown_outcomes",
)
LIMITS_REFUSED = Counter(
    "limits_refused_total",
    "{message}",
    "Messages with admission limits discarded as malformed.",
    exported="tidegate.task_queue.limits_refused",
)
STATS_REFUSED = Counter(
    "stats_refused_total",
    "{message}",
    "Statistics messages discarded: malformed, or in the name of another service.",
    exported=METRIC_STATS_REFUSED.of({}),
)
LOST = Counter(
    "lost_total",
    "{trajectory}",
    "Trajectories dropped because no actor finished their task before its deadline.",
    exported="tidegate.task.lost",
)
EVALUATIONS = Counter(
    "evaluations_total", "{task}", "Evaluation tasks published.", exported="tidegate.evaluation.requested"
)
CURRICULUM_FAILURES = Counter(
    "curriculum_failures_total",
    "{error}",
    "Questions to a curriculum of one's own without usable weights.",
    exported="tidegate.task_queue.curriculum_failures",
)
CURRICULUM_FAILURE = Text(
    "curriculum_failure", "The last failure of a curriculum, with its place in the code.", exported=False
)
ADMISSION_DELAY = Gauge(
    "admission_delay", "", "1 while admission is delayed.", exported="tidegate.admission.delayed"
)
ADMISSION_STATE = Text(
    "admission_state", "Reason for which admission is delayed, or admitting.", exported=False
)

# Counts by curriculum bin and length, compared for the drift objectives (``core.drift``).
ADMITTED_IN_BIN = Family(
    Counter,
    "admitted_bin.*_total",
    "{trajectory}",
    "Trajectories admitted, by curriculum bin.",
    label=ATTR_BIN,
    exported=False,
)
DECIDED_IN_BIN = Family(
    Counter,
    "decided_bin.*_total",
    "{trajectory}",
    "Trajectories trained or dropped, by curriculum bin.",
    label=ATTR_BIN,
    exported=False,
)
TRAINED_IN_BIN = Family(
    Counter,
    "trained_bin.*_total",
    "{trajectory}",
    "Trajectories trained, by curriculum bin.",
    label=ATTR_BIN,
    exported=False,
)
DECIDED_AT_LENGTH = Family(
    Counter,
    "decided_length.*_total",
    "{trajectory}",
    "Trajectories trained or dropped, by length.",
    label=ATTR_LENGTH,
    exported=False,
)
TRAINED_AT_LENGTH = Family(
    Counter,
    "trained_length.*_total",
    "{trajectory}",
    "Trajectories trained, by length.",
    label=ATTR_LENGTH,
    exported=False,
)
