"""Statistics of the operator of many runs: runs by the state of their release, rounds, helm's work and failures."""

from typing import Literal, get_args

from tidegate.catalogue.kinds import Counter, Family, Gauge

# Of a release, in the record that the operator keeps of a run.
State = Literal[
    "Pending",
    "Queued",
    "Applying",
    "Restarting",
    "Installed",
    "Suspending",
    "Suspended",
    "Refused",
    "Failed",
    "Uninstalling",
    "Expired",
]
STATES: tuple[State, ...] = get_args(State)

RUNS_IN = Family(
    Gauge,
    "operator_runs_*",
    "{run}",
    "Managed TrainingRuns, by the state of their release.",
    label="state",
    exported="tidegate.operator.runs",
)
GPUS = Gauge(
    "operator_gpus",
    "{gpu}",
    "GPUs that the quotas count for runs that work.",
    exported="tidegate.operator.gpus",
)
LEADER = Gauge(
    "operator_leader",
    "",
    "1 while this instance holds the operator's Lease.",
    exported="tidegate.operator.leader",
)
ROUNDS = Counter(
    "operator_rounds_total",
    "{round}",
    "Rounds in which every run was observed and decided on.",
    exported="tidegate.operator.reconciles",
)
FAILURES = Counter(
    "operator_failures_total",
    "{failure}",
    "Releases that became refused or failed.",
    exported="tidegate.operator.failures",
)
REQUESTS = Counter(
    "operator_requests_total",
    "{request}",
    "Requests of the operator to the Kubernetes API.",
    exported="tidegate.operator.requests",
)
REQUEST_FAILURES = Counter(
    "operator_request_failures_total",
    "{error}",
    "Requests of the operator to the Kubernetes API that failed.",
    exported="tidegate.operator.request_failures",
)
HELM_CALLS = Counter(
    "operator_helm_calls_total", "{call}", "Processes of helm.", exported="tidegate.operator.helm.calls"
)
HELM_FAILURES = Counter(
    "operator_helm_failures_total",
    "{error}",
    "Processes of helm that failed.",
    exported="tidegate.operator.helm.failures",
)
HELM_S = Counter(
    "operator_helm_seconds_total",
    "s",
    "Seconds that processes of helm took, waiting for the check of a run included.",
    exported="tidegate.operator.helm.time",
)
