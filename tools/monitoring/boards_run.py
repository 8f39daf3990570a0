"""Dashboards of a run as a whole: its objectives, and the way of its trajectories."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import telemetry as names
from tidegate.catalogue import trajectory_store as store_stats
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label, metric
from tools.monitoring.queries import (
    CAUSE,
    RATE,
    REASON,
    STAGE,
    buckets,
    equal,
    of_slo,
    one,
    quantile,
    quantiles,
    rate,
)
from tools.monitoring.slo_rules import RUN

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
                            f"sum by ({label(names.ATTR_CONDITION)}) ({one(admission_stats.SLOS_IN.metric)})",
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
                        Query(f"max({one(admission_stats.MAX_LAG.metric)})", "max_lag"),
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
                    (
                        Query(
                            f"max by ({CAUSE}) ({one(admission_stats.BOTTLENECK.metric)})", f"{{{{{CAUSE}}}}}"
                        ),
                    ),
                    kind="timeline",
                ),
                Panel(
                    "Limit and what is in flight",
                    (
                        Query(f"sum({one(admission_stats.MAX_RUNNING.metric)})", "limit"),
                        Query(f"sum({one(queue_stats.IN_FLIGHT_TRAJECTORIES.metric)})", "in flight"),
                        Query(f"sum({one(queue_stats.RUNNING_TRAJECTORIES.metric)})", "running"),
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
                        Query(f"sum({rate(queue_stats.ADMITTED.metric)})", "admitted"),
                        Query(f"sum({rate(actor_stats.TRAJECTORIES.metric)})", "generated"),
                        Query(f"sum({rate(store_stats.ACCEPTED.metric)})", "appended"),
                        Query(f"sum({rate(names.METRIC_CONSUMED)})", "consumed"),
                    ),
                ),
                Panel(
                    "Dropped a second, by reason",
                    (
                        Query(
                            f"sum by ({REASON}) ({rate(store_stats.DROPPED_BECAUSE.metric)})",
                            f"{{{{{REASON}}}}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Admitted and not terminal",
                    (
                        Query(
                            f"sum({one(queue_stats.ADMITTED.metric)}) - sum({one(names.METRIC_CONSUMED)})"
                            f" - sum({one(store_stats.DROPPED_BECAUSE.metric)})",
                            "admitted - consumed - dropped",
                        ),
                        Query(f"sum({one(queue_stats.IN_FLIGHT_TRAJECTORIES.metric)})", "in flight"),
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
                Panel(
                    "Leased to learners",
                    (Query(f"sum({one(store_stats.LEASED_TRAJECTORIES.metric)})", "leased"),),
                ),
                Panel(
                    "Payload held",
                    (Query(f"sum({one(store_stats.RESIDENT_BYTES.metric)})", "bytes"),),
                    unit="bytes",
                ),
                Panel(
                    "Duplicates and revivals",
                    (
                        Query(f"sum({rate(store_stats.DUPLICATES.metric)})", "duplicates"),
                        Query(f"sum({rate(store_stats.REVIVED.metric)})", "revived"),
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
