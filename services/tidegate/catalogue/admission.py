"""Statistics of admission: its decisions, objectives, scaling, and what it does in Kubernetes."""

from typing import get_args

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text
from tidegate.catalogue.telemetry import (
    ATTR_CAUSE,
    ATTR_CONDITION,
    ATTR_MODE,
    ATTR_OUTCOME,
    METRIC_HARD_SYNCS,
    METRIC_STATS_REFUSED,
)
from tidegate.core.balance import Bottleneck
from tidegate.core.scaling import Mode

# -- limits ------------------------------------------------------------------------------------------------------------

MAX_RUNNING = Gauge(
    "max_running", "{trajectory}", "Limit on running trajectories.", exported="tidegate.admission.limit"
)
MAX_LAG = Gauge("max_lag", "{version}", "Staleness budget in force.", exported="tidegate.admission.max_lag")
CAPACITY = Gauge(
    "capacity",
    "{trajectory}",
    "Trajectories that may be admitted now.",
    exported="tidegate.admission.capacity",
)
PAUSED = Gauge("paused", "", "1 while the run is paused on purpose.", exported="tidegate.admission.paused")
PAUSE = Text("pause", "Why the run is paused, since when and by whom.", exported=False)
DECISIONS = Counter("decisions_total", "{decision}", "Ticks of admission.", exported=False)
TASKS_WAITING = Gauge(
    "tasks_waiting",
    "{task}",
    "Messages in the TASKS stream; the depth of queues is exported.",
    exported=False,
)
HARD_SYNCS = Counter(
    "hard_syncs_total",
    "{sync}",
    "Hard synchronisations that every actor completed.",
    exported=METRIC_HARD_SYNCS.of({ATTR_OUTCOME: "completed"}),
)
HARD_SYNCS_ABORTED = Counter(
    "hard_syncs_aborted_total",
    "{sync}",
    "Hard synchronisations aborted at their deadline.",
    exported=METRIC_HARD_SYNCS.of({ATTR_OUTCOME: "aborted"}),
)
BUDGET = Gauge(
    "budget", "{version}", "Staleness budget of the goodput controller; max_lag is exported.", exported=False
)
BUDGET_MOVES = Counter(
    "budget_moves_total",
    "{change}",
    "Changes of the staleness budget by the goodput controller.",
    exported="tidegate.admission.budget_changes",
)
GOODPUT = Gauge(
    "goodput",
    "{trajectory}/s",
    "Trained trajectories a second, weighted by their effective sample size.",
    exported="tidegate.admission.goodput",
)
PUBLISH_FAILURES = Counter(
    "publish_failures_total",
    "{error}",
    "Limits that could not be published.",
    exported="tidegate.admission.publish_failures",
)
STATE_NOT_PUBLISHED = Counter(
    "state_not_published_total",
    "{error}",
    "Changes of admission's own state that the broker did not take; the next one repeats them.",
    exported="tidegate.admission.state_not_published",
)
EVENTS_LOST = Counter(
    "events_lost_total",
    "{event}",
    "Events of changed limits that the broker refused.",
    exported="tidegate.admission.events_lost",
)
BOUNDS_NOT_SET = Counter(
    "bounds_not_set_total",
    "{error}",
    "Failed attempts to set the delivery limit of the TASKS stream.",
    exported="tidegate.admission.bounds_not_set",
)
STATS_REFUSED = Counter(
    "stats_refused_total",
    "{message}",
    "Statistics messages discarded: malformed, or in the name of another service.",
    exported=METRIC_STATS_REFUSED.of({}),
)

# -- diagnosis and objectives ------------------------------------------------------------------------------------------

BOTTLENECK = Text(
    "bottleneck",
    "1 for the stage that limits the run.",
    exported="tidegate.bottleneck",
    label=ATTR_CAUSE,
    one_of=get_args(Bottleneck),
)
BOTTLENECK_SENTENCE = Text("bottleneck_sentence", "Explanation of the bottleneck.", exported=False)
BOTTLENECK_FIX = Text("bottleneck_fix", "Setting that would move the bottleneck.", exported=False)
SAMPLES_LOST = Counter(
    "samples_lost_total", "{sample}", "Samples of the whole system that the disk refused.", exported=False
)
VERIFIER_PROBLEM = Text(
    "verifier_problem", "Share of verdicts that failed, with the most frequent reason.", exported=False
)
CURRICULUM_PROBLEM = Text(
    "curriculum_problem", "How often the curriculum failed, with the newest reason.", exported=False
)
ACTOR_PROBLEMS = Text(
    "actor_problems",
    "Refused batches, failed verifiers, faults of environments by kind, and the newest of them with its actor.",
    exported=False,
)
SLO_EVENTS = Counter(
    "slo_events_total",
    "{event}",
    "Changes of the condition of an objective.",
    exported="tidegate.slo.changes",
)
SLOS_IN = Family(
    Gauge,
    "slos_*",
    "{objective}",
    "Objectives by condition.",
    label=ATTR_CONDITION,
    exported="tidegate.slo.conditions",
)
SLOS = Text("slos", "Conditions of all objectives in one line.", exported=False)

# -- scaling -----------------------------------------------------------------------------------------------------------

SCALING_STEPS = Counter(
    "scaling_steps_total",
    "{change}",
    "Changes of the recommended number of actors.",
    exported="tidegate.scaling.changes",
)
SCALING_CURRENT = Gauge(
    "scaling_current", "{actor}", "Actors that report.", exported="tidegate.scaling.current"
)
SCALING_RECOMMENDED = Gauge(
    "scaling_recommended",
    "{actor}",
    "Actors recommended for the next step.",
    exported="tidegate.scaling.recommended",
)
SCALING_NEEDED = Gauge(
    "scaling_needed",
    "{actor}",
    "Actors that would keep the learner busy.",
    exported="tidegate.scaling.needed",
)
SCALING_MODE = Text(
    "scaling_mode",
    "1 for the scaling mode in force.",
    exported="tidegate.admission.mode",
    label=ATTR_MODE,
    one_of=get_args(Mode),
)
SCALING_OWNER = Text("scaling_owner", "Manager that scaled the actors last.", exported=False)
SCALING_SENTENCE = Text("scaling_sentence", "Explanation of the recommendation.", exported=False)

# -- Kubernetes --------------------------------------------------------------------------------------------------------

KUBERNETES_LEADER = Gauge(
    "kubernetes_leader",
    "",
    "1 while this instance holds the leader lease.",
    exported="tidegate.kubernetes.leader",
)
KUBERNETES_REQUESTS = Counter(
    "kubernetes_requests_total",
    "{request}",
    "Requests to the Kubernetes API.",
    exported="tidegate.kubernetes.requests",
)
KUBERNETES_FAILURES = Counter(
    "kubernetes_failures_total",
    "{error}",
    "Requests to the Kubernetes API that failed.",
    exported="tidegate.kubernetes.failures",
)
KUBERNETES_CONFLICTS = Counter(
    "kubernetes_conflicts_total",
    "{error}",
    "Writes to the Kubernetes API refused because the object had changed.",
    exported="tidegate.kubernetes.conflicts",
)
KUBERNETES_PATCHES = Counter(
    "kubernetes_patches_total",
    "{patch}",
    "Deletion costs of pods written.",
    exported="tidegate.kubernetes.patches",
)
KUBERNETES_EVENTS_DROPPED = Counter(
    "kubernetes_events_dropped_total",
    "{event}",
    "Kubernetes Events dropped by the rate limit.",
    exported="tidegate.kubernetes.events_dropped",
)
KUBERNETES_TROUBLES = Text("kubernetes_troubles", "Requests that fail at present.", exported=False)
FOREIGN_SCALES = Counter(
    "foreign_scales_total",
    "{change}",
    "Scalings of the actors by another manager.",
    exported="tidegate.kubernetes.foreign_scales",
)
FOREIGN_POD_COSTS = Gauge(
    "foreign_pod_costs",
    "{pod}",
    "Pods whose deletion cost another manager sets.",
    exported="tidegate.kubernetes.foreign_pod_costs",
)
