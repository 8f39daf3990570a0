"""The dashboards: what each panel asks. Every metric comes from the catalogue, every rule from ``slo_rules``."""

from tidegate.runtime import telemetry_names as names
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label, metric
from tools.monitoring.slo_rules import RUN

RATE = "$__rate_interval"
CAUSE, STAGE, STATE, REASON = (
    label(each) for each in (names.ATTR_CAUSE, names.ATTR_STAGE, names.ATTR_STATE, names.ATTR_REASON)
)
QUEUE, STREAM, CONSUMER = (label(each) for each in (names.ATTR_QUEUE, names.ATTR_STREAM, names.ATTR_CONSUMER))
JOB_OF = {service: f'job="tidegate/tidegate-{service}"' for service in ("actor", "learner")}


def equal(name: str, value: str) -> str:
    """A condition on a label."""
    return f'{name}="{value}"'


def one(name: str, *conditions: str) -> str:
    """The series of a metric in the chosen runs."""
    return metric(name) + "{" + ",".join([f'{RUN}=~"$run"', *conditions]) + "}"


def rate(name: str, *conditions: str) -> str:
    """A counter a second, in the chosen runs."""
    return f"rate({one(name, *conditions)}[{RATE}])"


def quantile(share: float, name: str, *by: str, conditions: tuple[str, ...] = ()) -> str:
    """A quantile of a histogram in the chosen runs."""
    selected = metric(name) + "_bucket{" + ",".join([f'{RUN}=~"$run"', *conditions]) + "}"
    return f"histogram_quantile({share:g}, sum by ({', '.join(['le', *by])}) (rate({selected}[{RATE}])))"


def buckets(name: str) -> str:
    """A histogram's buckets over time, for a heatmap."""
    return f'sum by (le) (rate({metric(name)}_bucket{{{RUN}=~"$run"}}[{RATE}]))'


def quantiles(name: str, *, exemplars: bool = False) -> tuple[Query, ...]:
    """Median, 95th and 99th percentile."""
    return tuple(
        Query(quantile(share, name), f"p{round(100 * share)}", exemplars and share == 0.95)
        for share in (0.5, 0.95, 0.99)
    )


def of_slo(record: str) -> str:
    """A recorded series of every objective in the chosen runs."""
    return f'{record}{{{RUN}=~"$run"}}'


OVERVIEW = Board(
    uid="tidegate-slo",
    title="Tidegate / Objectives",
    says="What the run promised, what is left of each budget, and who bounds it.",
    rows=(
        Row(
            "Budgets",
            (
                Panel(
                    "Budget left",
                    (
                        Query(
                            f"sort(max by (sloth_slo) ({of_slo('tidegate:slo_budget_left:ratio')}))",
                            "{{sloth_slo}}",
                        ),
                    ),
                    unit="percentunit",
                    kind="bargauge",
                    says="As `tidegate slo` shows it, over the rules' period.",
                ),
                Panel(
                    "Burn rate",
                    (
                        Query(
                            f"max by (sloth_slo) ({of_slo('slo:current_burn_rate:ratio')})", "{{sloth_slo}}"
                        ),
                    ),
                    says="1 spends a budget exactly within the period; 4.8 and 3 page, 1.5 is a ticket.",
                ),
                Panel(
                    "Objectives by condition",
                    (
                        Query(
                            f"sum by ({label(names.ATTR_CONDITION)}) ({one(names.METRIC_SLO_CONDITIONS)})",
                            f"{{{{{label(names.ATTR_CONDITION)}}}}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Bad observations",
                    (
                        Query(
                            f"sum by ({label(names.ATTR_SLO)})"
                            f" ({rate(names.METRIC_SLO_EVENTS, equal(label(names.ATTR_SLO_RESULT), 'bad'))})",
                            f"{{{{{label(names.ATTR_SLO)}}}}}",
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    "Targets",
                    (
                        Query(
                            f"max by ({label(names.ATTR_SLO)}) ({one(names.METRIC_SLO_TARGET)})",
                            f"{{{{{label(names.ATTR_SLO)}}}}}",
                        ),
                    ),
                    unit="percentunit",
                    kind="stat",
                    width=12,
                ),
            ),
        ),
        Row(
            "Staleness",
            (
                Panel(
                    "Lag at consumption",
                    (
                        *quantiles(names.METRIC_LAG, exemplars=True),
                        Query(f"max({one(names.METRIC_LAG_WINDOW_MAX)})", "max"),
                        Query(f"max({one(names.METRIC_ADMISSION_MAX_LAG)})", "max_lag"),
                    ),
                    says="Quantiles interpolate between whole versions; the objective counts trajectories instead.",
                ),
                Panel("Lag, all of it", (Query(buckets(names.METRIC_LAG), "{{le}}"),), kind="heatmap"),
                Panel("Age at consumption", quantiles(names.METRIC_AGE, exemplars=True), unit="s"),
            ),
        ),
        Row(
            "Control",
            (
                Panel(
                    "Bottleneck",
                    (Query(f"max by ({CAUSE}) ({one(names.METRIC_BOTTLENECK)})", f"{{{{{CAUSE}}}}}"),),
                    kind="timeline",
                ),
                Panel(
                    "Limit and what is in flight",
                    (
                        Query(f"sum({one(names.METRIC_ADMISSION_LIMIT)})", "limit"),
                        Query(f"sum({one(names.METRIC_INFLIGHT)})", "in flight"),
                        Query(f"sum({one(names.METRIC_RUNNING)})", "running"),
                    ),
                ),
                Panel(
                    "Trained a second",
                    (Query(f"sum by ({RUN}) ({rate(names.METRIC_CONSUMED)})", f"{{{{{RUN}}}}}"),),
                ),
            ),
        ),
    ),
)

FLOW = Board(
    uid="tidegate-flow",
    title="Tidegate / Flow of a trajectory",
    says="Rate, errors and duration of every stage from task to gradient, and that nothing is lost between them.",
    rows=(
        Row(
            "Conservation",
            (
                Panel(
                    "Trajectories a second",
                    (
                        Query(f"sum({rate(names.METRIC_TASKS_ADMITTED)})", "admitted"),
                        Query(f"sum({rate(names.METRIC_GENERATED)})", "generated"),
                        Query(f"sum({rate(names.METRIC_APPENDED)})", "appended"),
                        Query(f"sum({rate(names.METRIC_CONSUMED)})", "consumed"),
                    ),
                ),
                Panel(
                    "Dropped a second, by reason",
                    (Query(f"sum by ({REASON}) ({rate(names.METRIC_DROPPED)})", f"{{{{{REASON}}}}}"),),
                    stacked=True,
                ),
                Panel(
                    "Admitted and not terminal",
                    (
                        Query(
                            f"sum({one(names.METRIC_TASKS_ADMITTED)}) - sum({one(names.METRIC_CONSUMED)})"
                            f" - sum({one(names.METRIC_DROPPED)})",
                            "admitted - consumed - dropped",
                        ),
                        Query(f"sum({one(names.METRIC_INFLIGHT)})", "in flight"),
                    ),
                    says="Both lines are the same number, told by different services; a restart of one parts them.",
                ),
            ),
        ),
        Row(
            "Stages",
            (
                Panel(
                    "Rate",
                    (
                        Query(
                            f"sum by ({STAGE}) (rate({metric(names.METRIC_STAGE_DURATION)}_count"
                            f'{{{RUN}=~"$run"}}[{RATE}]))',
                            f"{{{{{STAGE}}}}}",
                        ),
                    ),
                    unit="ops",
                ),
                Panel(
                    "Errors",
                    (Query(f"sum by ({STAGE}) ({rate(names.METRIC_STAGE_ERRORS)})", f"{{{{{STAGE}}}}}"),),
                    unit="ops",
                ),
                Panel(
                    "Duration, p95",
                    (Query(quantile(0.95, names.METRIC_STAGE_DURATION, STAGE), f"{{{{{STAGE}}}}}"),),
                    unit="s",
                ),
                Panel(
                    "Calls served, p95 by method",
                    (
                        Query(
                            quantile(0.95, names.METRIC_RPC_DURATION, label(names.ATTR_RPC_METHOD)),
                            f"{{{{{label(names.ATTR_RPC_METHOD)}}}}}",
                        ),
                    ),
                    unit="s",
                    width=12,
                ),
                Panel(
                    "Calls a second by status",
                    (
                        Query(
                            f"sum by ({label(names.ATTR_RPC_STATUS)}) (rate({metric(names.METRIC_RPC_DURATION)}_count"
                            f'{{{RUN}=~"$run"}}[{RATE}]))',
                            f"{{{{{label(names.ATTR_RPC_STATUS)}}}}}",
                        ),
                    ),
                    unit="ops",
                    width=12,
                ),
            ),
        ),
        Row(
            "Store",
            (
                Panel(
                    "Waiting, by lag",
                    (
                        Query(
                            f"sum by ({label(names.ATTR_LAG_BUCKET)}) ({one(names.METRIC_STORE_RESIDENT)})",
                            f"{{{{{label(names.ATTR_LAG_BUCKET)}}}}} behind",
                        ),
                    ),
                    stacked=True,
                    says="What the next updates are made of; what stands far right is about to be dropped.",
                ),
                Panel(
                    "Oldest that waits",
                    (Query(f"max({one(names.METRIC_QUEUE_OLDEST_AGE)})", "age"),),
                    unit="s",
                ),
                Panel("Leased to learners", (Query(f"sum({one(names.METRIC_LEASE_ACTIVE)})", "leased"),)),
                Panel(
                    "Payload held", (Query(f"sum({one(names.METRIC_STORE_BYTES)})", "bytes"),), unit="bytes"
                ),
                Panel(
                    "Duplicates and revivals",
                    (
                        Query(f"sum({rate(names.METRIC_DUPLICATES)})", "duplicates"),
                        Query(f"sum({rate(names.METRIC_REVIVED)})", "revived"),
                    ),
                ),
                Panel(
                    "Traces kept after the fact",
                    (
                        Query(f"sum({rate(names.METRIC_TRACE_DEFERRED)})", "late or dropped, written"),
                        Query(f"sum({rate(names.METRIC_TRACE_SUPPRESSED)})", "above the rate, not written"),
                    ),
                ),
            ),
        ),
    ),
)

ACTORS = Board(
    uid="tidegate-actors",
    title="Tidegate / Actors and environments",
    says="Where actors' time goes, what they make, and how new their policies are.",
    rows=(
        Row(
            "Actors",
            (
                Panel(
                    "Actors that report",
                    (Query(f"count by ({RUN}) ({one(names.METRIC_ACTOR_VERSION)})", f"{{{{{RUN}}}}}"),),
                    kind="stat",
                ),
                Panel(
                    "Where their time goes",
                    (
                        Query(
                            f"sum by ({STATE}) ({rate(names.METRIC_WORKER_TIME, JOB_OF['actor'])})",
                            f"{{{{{STATE}}}}}",
                        ),
                    ),
                    unit="s",
                    stacked=True,
                    says="Seconds a second, over all actors.",
                ),
                Panel(
                    "Steps a second, each",
                    (Query(f"sum by (instance) ({rate(names.METRIC_STEPS)})", "{{instance}}"),),
                ),
                Panel(
                    "Trajectories a second, each",
                    (Query(f"sum by (instance) ({rate(names.METRIC_GENERATED)})", "{{instance}}"),),
                ),
                Panel(
                    "Tasks handed back, redelivered, failed",
                    (
                        Query(f"sum({rate(names.METRIC_REDELIVERED)})", "redelivered"),
                        Query(
                            f"sum({rate(names.METRIC_STAGE_ERRORS, equal(STAGE, names.SPAN_GENERATE))})",
                            "failed",
                        ),
                    ),
                ),
                Panel(
                    "Behind the learner, each",
                    (
                        Query(
                            f"scalar(max({one(names.METRIC_LEARNER_VERSION)})) - {one(names.METRIC_ACTOR_VERSION)}",
                            "{{instance}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Processes",
            (
                Panel(
                    "CPU",
                    (Query(f"sum by (job) ({rate(names.METRIC_PROCESS_CPU)})", "{{job}}"),),
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Memory",
                    (Query(f"sum by (job) ({one(names.METRIC_PROCESS_MEMORY)})", "{{job}}"),),
                    unit="bytes",
                    stacked=True,
                    width=12,
                ),
            ),
        ),
    ),
)

LEARNER = Board(
    uid="tidegate-learner",
    title="Tidegate / Learner",
    says="What it learns, what it waits for, and what an update costs.",
    rows=(
        Row(
            "Learning",
            (
                Panel(
                    "Mean return",
                    (Query(f"max by ({RUN}) ({one(names.METRIC_LEARNER_RETURN)})", f"{{{{{RUN}}}}}"),),
                ),
                Panel(
                    "Loss", (Query(f"max by ({RUN}) ({one(names.METRIC_LEARNER_LOSS)})", f"{{{{{RUN}}}}}"),)
                ),
                Panel(
                    "Effective sample size and clipped",
                    (
                        Query(f"max({one(names.METRIC_LEARNER_ESS)})", "effective sample size"),
                        Query(f"max({one(names.METRIC_LEARNER_CLIPPED)})", "clipped"),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    "Steps trained a second", (Query(f"sum({rate(names.METRIC_LEARNER_STEPS)})", "steps"),)
                ),
                Panel(
                    "Versions a second",
                    (Query(f"sum(rate({one(names.METRIC_LEARNER_VERSION)}[{RATE}]))", "versions"),),
                ),
                Panel(
                    "Graded response",
                    (Query(f"max({one(names.METRIC_RESPONSE_TIER)})", "tier"),),
                    kind="stat",
                ),
            ),
        ),
        Row(
            "Time",
            (
                Panel("Update", quantiles(names.METRIC_STEP_DURATION), unit="s"),
                Panel(
                    "Waits, by cause",
                    (Query(f"sum by ({CAUSE}) ({rate(names.METRIC_LEARNER_WAIT)})", f"{{{{{CAUSE}}}}}"),),
                    unit="percentunit",
                    stacked=True,
                ),
                Panel(
                    "Where its time goes",
                    (
                        Query(
                            f"sum by ({STATE}) ({rate(names.METRIC_WORKER_TIME, JOB_OF['learner'])})",
                            f"{{{{{STATE}}}}}",
                        ),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    "Versions inside a trajectory",
                    (Query(buckets(names.METRIC_VERSION_SPAN), "{{le}}"),),
                    kind="heatmap",
                ),
                Panel(
                    "Batches given back, checkpoints",
                    (
                        Query(f"sum({rate(names.METRIC_LEARNER_OUTDATED)})", "outdated batches"),
                        Query(f"sum({rate(names.METRIC_CHECKPOINTS)})", "checkpoints"),
                    ),
                ),
                Panel(
                    "Provenance incomplete",
                    (Query(f"sum({one(names.METRIC_PROVENANCE_INCOMPLETE)})", "trajectories"),),
                    kind="stat",
                ),
            ),
        ),
    ),
)

BROKER = Board(
    uid="tidegate-broker",
    title="Tidegate / Broker",
    says="Streams and consumers as admission sees them; NATS needs no exporter for it.",
    rows=(
        Row(
            "Streams",
            (
                Panel(
                    "Messages",
                    (Query(f"sum by ({STREAM}) ({one(names.METRIC_STREAM_MESSAGES)})", f"{{{{{STREAM}}}}}"),),
                ),
                Panel(
                    "Bytes",
                    (Query(f"sum by ({STREAM}) ({one(names.METRIC_STREAM_BYTES)})", f"{{{{{STREAM}}}}}"),),
                    unit="bytes",
                ),
                Panel(
                    "How full",
                    (Query(f"max by ({STREAM}) ({one(names.METRIC_STREAM_FULLNESS)})", f"{{{{{STREAM}}}}}"),),
                    unit="percentunit",
                ),
                Panel(
                    "Waiting before a stage",
                    (Query(f"sum by ({QUEUE}) ({one(names.METRIC_QUEUE_DEPTH)})", f"{{{{{QUEUE}}}}}"),),
                ),
            ),
        ),
        Row(
            "Consumers",
            (
                Panel(
                    "Not delivered yet",
                    (
                        Query(
                            f"sum by ({CONSUMER}) ({one(names.METRIC_CONSUMER_PENDING)})",
                            f"{{{{{CONSUMER}}}}}",
                        ),
                    ),
                ),
                Panel(
                    "Delivered, not acknowledged",
                    (
                        Query(
                            f"sum by ({CONSUMER}) ({one(names.METRIC_CONSUMER_ACK_PENDING)})",
                            f"{{{{{CONSUMER}}}}}",
                        ),
                    ),
                ),
                Panel(
                    "Delivered more than once",
                    (
                        Query(
                            f"sum by ({CONSUMER}) ({one(names.METRIC_CONSUMER_REDELIVERED)})",
                            f"{{{{{CONSUMER}}}}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Trouble",
            (
                Panel(
                    "Backpressure", (Query(f"sum by (job) ({rate(names.METRIC_BACKPRESSURE)})", "{{job}}"),)
                ),
                Panel(
                    "Reconnects",
                    (Query(f"sum by (job) (increase({one(names.METRIC_RECONNECTS)}[{RATE}]))", "{{job}}"),),
                ),
                Panel("Quarantined", (Query(f"sum by (job) ({one(names.METRIC_QUARANTINED)})", "{{job}}"),)),
            ),
        ),
    ),
)

VERSIONS = Board(
    uid="tidegate-versions",
    title="Tidegate / Versions and weights",
    says="How fast a new policy reaches whoever acts on it.",
    rows=(
        Row(
            "Versions",
            (
                Panel(
                    "Learner and actors",
                    (
                        Query(f"max by ({RUN}) ({one(names.METRIC_LEARNER_VERSION)})", "learner"),
                        Query(f"max by ({RUN}) ({one(names.METRIC_ACTOR_VERSION)})", "newest actor"),
                        Query(f"min by ({RUN}) ({one(names.METRIC_ACTOR_VERSION)})", "oldest actor"),
                    ),
                ),
                Panel(
                    "Learner ahead of the oldest actor",
                    (
                        Query(
                            f"max by ({RUN}) ({one(names.METRIC_LEARNER_VERSION)})"
                            f" - min by ({RUN}) ({one(names.METRIC_ACTOR_VERSION)})",
                            "versions",
                        ),
                    ),
                ),
                Panel(
                    "Publication until an actor serves it",
                    quantiles(names.METRIC_WEIGHTS_PROPAGATION),
                    unit="s",
                ),
            ),
        ),
        Row(
            "Weights",
            (
                Panel("Publication", quantiles(names.METRIC_WEIGHTS_PUBLISH), unit="s"),
                Panel("An actor's load", quantiles(names.METRIC_WEIGHTS_LOAD), unit="s"),
                Panel(
                    "Bytes a second",
                    (
                        Query(
                            f"sum by ({label(names.ATTR_KIND)}) ({rate(names.METRIC_WEIGHTS_BYTES)})",
                            f"{{{{{label(names.ATTR_KIND)}}}}}",
                        ),
                    ),
                    unit="Bps",
                ),
                Panel(
                    "Versions published a second",
                    (Query(f"sum({rate(names.METRIC_WEIGHTS_PUBLISHED)})", "published"),),
                ),
                Panel(
                    "Versions kept", (Query(f"sum({one(names.METRIC_WEIGHTS_KEPT)})", "kept"),), kind="stat"
                ),
            ),
        ),
    ),
)

ADMISSION = Board(
    uid="tidegate-admission",
    title="Tidegate / Admission and scaling",
    says="What is admitted, what holds it back, and in which mode actors are scaled.",
    rows=(
        Row(
            "Admission",
            (
                Panel(
                    "Decisions a second",
                    (
                        Query(
                            f"sum by ({label(names.ATTR_DECISION)}, {CAUSE})"
                            f" ({rate(names.METRIC_ADMISSION_DECISIONS)})",
                            f"{{{{{label(names.ATTR_DECISION)}}}}} {{{{{CAUSE}}}}}",
                        ),
                    ),
                ),
                Panel(
                    "Capacity",
                    (
                        Query(f"sum({one(names.METRIC_ADMISSION_CAPACITY)})", "may be admitted now"),
                        Query(f"sum({one(names.METRIC_ADMISSION_LIMIT)})", "limit on running"),
                    ),
                ),
                Panel("Staleness budget", (Query(f"max({one(names.METRIC_ADMISSION_MAX_LAG)})", "max_lag"),)),
                Panel(
                    "Paused", (Query(f"max({one(names.METRIC_ADMISSION_PAUSED)})", "paused"),), kind="stat"
                ),
            ),
        ),
        Row(
            "Scaling",
            (
                Panel(
                    "Mode",
                    (
                        Query(
                            f"max by ({label(names.ATTR_MODE)}) ({one(names.METRIC_ADMISSION_MODE)})",
                            f"{{{{{label(names.ATTR_MODE)}}}}}",
                        ),
                    ),
                    kind="timeline",
                ),
                Panel("Actors that report", (Query(f"count({one(names.METRIC_ACTOR_VERSION)})", "actors"),)),
                Panel(
                    "Unpublished and running",
                    (
                        Query(f"sum({one(names.METRIC_UNPUBLISHED)})", "unpublished"),
                        Query(f"sum({one(names.METRIC_RUNNING)})", "running"),
                    ),
                ),
            ),
        ),
    ),
)

BOARDS = (OVERVIEW, FLOW, ACTORS, LEARNER, BROKER, VERSIONS, ADMISSION)
