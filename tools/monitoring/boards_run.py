"""Dashboards of a whole run: its objectives, and the path of its trajectories."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import telemetry as names
from tidegate.catalogue import trajectory_store as store_stats
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label, metric
from tools.monitoring.queries import (
    CAUSE,
    RATE,
    REASON,
    SIDE,
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
    description="The run's objectives, the error budget left of each, and the bottleneck.",
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
                    description="As `tidegate slo` reports it, over the period of the rules.",
                ),
                Panel(
                    "Burn rate",
                    (
                        Query(
                            f"max by (sloth_slo) ({of_slo('slo:current_burn_rate:ratio')})", "{{sloth_slo}}"
                        ),
                    ),
                    description="At 1 the budget lasts exactly one period. Alerts page at 4.8 and 3; 1.5 is a ticket.",
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
                    "Policy lag of trained trajectories",
                    (
                        *quantiles(names.METRIC_LAG, exemplars=True),
                        Query(f"max({one(names.METRIC_LAG_WINDOW_MAX)})", "max"),
                        Query(f"max({one(admission_stats.MAX_LAG.metric)})", "max_lag"),
                    ),
                    description="Quantiles interpolate between whole versions; the objective counts trajectories.",
                ),
                Panel(
                    "Policy lag, distribution", (Query(buckets(names.METRIC_LAG), "{{le}}"),), kind="heatmap"
                ),
                Panel("Age of trained trajectories", quantiles(names.METRIC_AGE, exemplars=True), unit="s"),
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
                    "In flight, and the limit",
                    (
                        Query(f"sum({one(admission_stats.MAX_RUNNING.metric)})", "limit"),
                        Query(f"sum({one(queue_stats.IN_FLIGHT_TRAJECTORIES.metric)})", "in flight"),
                        Query(f"sum({one(queue_stats.RUNNING_TRAJECTORIES.metric)})", "running"),
                    ),
                ),
                Panel(
                    "Trajectories trained per second",
                    (Query(f"sum by ({RUN}) ({rate(names.METRIC_CONSUMED)})", f"{{{{{RUN}}}}}"),),
                ),
            ),
        ),
    ),
)

FLOW = Board(
    uid="tidegate-flow",
    title="Tidegate / Flow of a trajectory",
    description="Rate, errors and duration of every stage from task to gradient, and the balance between them.",
    rows=(
        Row(
            "Conservation",
            (
                Panel(
                    "Trajectories per second",
                    (
                        Query(f"sum({rate(queue_stats.ADMITTED.metric)})", "admitted"),
                        Query(f"sum({rate(actor_stats.TRAJECTORIES.metric)})", "generated"),
                        Query(f"sum({rate(store_stats.ACCEPTED.metric)})", "appended"),
                        Query(f"sum({rate(names.METRIC_CONSUMED)})", "consumed"),
                    ),
                ),
                Panel(
                    "Trajectories dropped per second, by reason",
                    (
                        Query(
                            f"sum by ({REASON}) ({rate(store_stats.DROPPED_BECAUSE.metric)})",
                            f"{{{{{REASON}}}}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Trajectories in flight",
                    (
                        Query(
                            f"sum({one(queue_stats.ADMITTED.metric)}) - sum({one(names.METRIC_CONSUMED)})"
                            f" - sum({one(store_stats.DROPPED_BECAUSE.metric)})",
                            "admitted - consumed - dropped",
                        ),
                        Query(f"sum({one(queue_stats.IN_FLIGHT_TRAJECTORIES.metric)})", "in flight"),
                    ),
                    description="The same number, counted by different services; it differs after a restart.",
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
                    "gRPC calls, p95 duration by method",
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
                    "gRPC calls per second, by status",
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
                    "Available trajectories, by lag",
                    (
                        Query(
                            f"sum by ({label(names.ATTR_LAG_BUCKET)}) ({one(names.METRIC_STORE_RESIDENT)})",
                            f"{{{{{label(names.ATTR_LAG_BUCKET)}}}}} behind",
                        ),
                    ),
                    stacked=True,
                    description="The input of the next updates. Trajectories with the largest lag are dropped next.",
                ),
                Panel(
                    "Age of the oldest available trajectory",
                    (Query(f"max({one(names.METRIC_QUEUE_OLDEST_AGE)})", "age"),),
                    unit="s",
                ),
                Panel(
                    "Trajectories leased to the learner",
                    (Query(f"sum({one(store_stats.LEASED_TRAJECTORIES.metric)})", "leased"),),
                ),
                Panel(
                    "Leases that expired",
                    (Query(f"sum({rate(store_stats.LEASES_EXPIRED.metric)})", "expired"),),
                    description="Batches a second whose learner did not renew its lease: it is lost, suspended or cut"
                    " off. Their trajectories are available again; a late commit is refused.",
                ),
                Panel(
                    "Payload in the store",
                    (Query(f"sum({one(store_stats.RESIDENT_BYTES.metric)})", "bytes"),),
                    unit="bytes",
                ),
                Panel(
                    "Replay",
                    (
                        Query(f"sum({one(store_stats.REPLAY_FILL.metric)})", "fill"),
                        Query(
                            f"sum({one(store_stats.REPLAY_SAMPLES_PER_INSERT.metric)})", "samples per insert"
                        ),
                        Query(
                            f"sum by ({SIDE}) ({rate(store_stats.REPLAY_WAIT_S.metric)})",
                            f"{{{{{SIDE}}}}} wait",
                        ),
                        Query(
                            f"sum({rate(store_stats.REPLAY_PRIORITIES_REFUSED.metric)})", "priorities refused"
                        ),
                        Query(
                            f"sum({rate(store_stats.REPLAY_PRIORITIES_IGNORED.metric)})", "priorities ignored"
                        ),
                    ),
                    description="Share of the capacity in use, units drawn for each one inserted, the share of time in"
                    " which one side waits for the other, and priorities a second that were not used.",
                    only_with="`trajectory_store.replay`",
                ),
                Panel(
                    "Duplicates, revivals and recomputed updates",
                    (
                        Query(f"sum({rate(store_stats.DUPLICATES.metric)})", "duplicates"),
                        Query(f"sum({rate(store_stats.REVIVED.metric)})", "revived"),
                        Query(f"sum({rate(learner_stats.UPDATES_RECOMPUTED.metric)})", "recomputed updates"),
                    ),
                ),
                Panel(
                    "Traces of dropped or late trajectories",
                    (
                        Query(f"sum({rate(names.METRIC_TRACE_DEFERRED)})", "exported"),
                        Query(f"sum({rate(names.METRIC_TRACE_SUPPRESSED)})", "withheld by the rate limit"),
                    ),
                ),
            ),
        ),
    ),
)
