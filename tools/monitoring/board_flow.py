"""Dashboard of the path of a trajectory from its task to its gradient."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import telemetry as names
from tidegate.catalogue import trajectory_store as store_stats
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label, metric
from tools.monitoring.queries import (
    CHOSEN,
    RATE,
    REASON,
    SIDE,
    STAGE,
    one,
    quantile,
    rate,
)
from tools.monitoring.slo_rules import OF_RUN

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
                        Query(f"sum by ({OF_RUN}) ({rate(queue_stats.ADMITTED.metric)})", "admitted"),
                        Query(f"sum by ({OF_RUN}) ({rate(actor_stats.TRAJECTORIES.metric)})", "generated"),
                        Query(f"sum by ({OF_RUN}) ({rate(store_stats.ACCEPTED.metric)})", "appended"),
                        Query(f"sum by ({OF_RUN}) ({rate(names.METRIC_CONSUMED)})", "consumed"),
                    ),
                    description="The same trajectories at four places. Normal: the lines lie on each other. The first"
                    " line that is lower than the one before names the slow stage.",
                    unit="cps",
                ),
                Panel(
                    "Trajectories dropped per second, by reason",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {REASON}) ({rate(store_stats.DROPPED_BECAUSE.metric)})",
                            f"{{{{{REASON}}}}}",
                        ),
                    ),
                    stacked=True,
                    description="Work that ended without training. Normal: little. Stale: rollouts take longer than"
                    " `max_lag` allows. Failed or invalid: read the log of actors and environments.",
                    unit="cps",
                ),
                Panel(
                    "Trajectories in flight",
                    (
                        Query(
                            f"sum by ({OF_RUN}) ({one(queue_stats.ADMITTED.metric)})"
                            f" - sum by ({OF_RUN}) ({one(names.METRIC_CONSUMED)})"
                            f" - sum by ({OF_RUN}) ({one(store_stats.DROPPED_BECAUSE.metric)})",
                            "admitted - consumed - dropped",
                        ),
                        Query(
                            f"sum by ({OF_RUN}) ({one(queue_stats.IN_FLIGHT_TRAJECTORIES.metric)})",
                            "in flight",
                        ),
                    ),
                    description="The same number, counted by different services; it differs after a restart. Normal:"
                    " below the limit of admission. A lasting difference: run `tidegate audit`.",
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
                            f"sum by ({OF_RUN}, {STAGE}) (rate({metric(names.METRIC_STAGE_DURATION)}_count"
                            f"{{{CHOSEN}}}[{RATE}]))",
                            f"{{{{{STAGE}}}}}",
                        ),
                    ),
                    unit="ops",
                    description="Trajectories a second at each stage. Normal: equal for all stages.",
                ),
                Panel(
                    "Errors",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {STAGE}) ({rate(names.METRIC_STAGE_ERRORS)})",
                            f"{{{{{STAGE}}}}}",
                        ),
                    ),
                    unit="ops",
                    description="Failures at each stage. Normal: none. The stage names the service whose log to read.",
                ),
                Panel(
                    "Duration, p95",
                    (Query(quantile(0.95, names.METRIC_STAGE_DURATION, STAGE), f"{{{{{STAGE}}}}}"),),
                    unit="s",
                    description="How long each stage takes for 95 % of trajectories. Normal: stable. The stage that"
                    " grows is the bottleneck.",
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
                    description="Normal: milliseconds; pulls of weights take longer. One method that grows: its"
                    " service is short of CPU, or its disk is slow.",
                ),
                Panel(
                    "gRPC calls per second, by status",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {label(names.ATTR_RPC_STATUS)})"
                            f" (rate({metric(names.METRIC_RPC_DURATION)}_count"
                            f"{{{CHOSEN}}}[{RATE}]))",
                            f"{{{{{label(names.ATTR_RPC_STATUS)}}}}}",
                        ),
                    ),
                    unit="ops",
                    width=12,
                    description="Normal: OK. UNAVAILABLE: the service restarts. RESOURCE_EXHAUSTED: it is at its"
                    " limit.",
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
                            f"sum by ({OF_RUN}, {label(names.ATTR_LAG_BUCKET)}) ({one(names.METRIC_STORE_RESIDENT)})",
                            f"{{{{{label(names.ATTR_LAG_BUCKET)}}}}} behind",
                        ),
                    ),
                    stacked=True,
                    description="The input of the next updates. Trajectories with the largest lag are dropped next."
                    " Normal: one batch or two. Many: the learner is the bottleneck.",
                ),
                Panel(
                    "Age of the oldest available trajectory",
                    (Query(f"max by ({OF_RUN}) ({one(names.METRIC_QUEUE_OLDEST_AGE)})", "age"),),
                    unit="s",
                    description="Normal: seconds. A steady rise: the learner does not train; at `max_age_s`"
                    " trajectories are dropped.",
                ),
                Panel(
                    "Trajectories leased to the learner",
                    (Query(f"sum by ({OF_RUN}) ({one(store_stats.LEASED_TRAJECTORIES.metric)})", "leased"),),
                    description="Normal: one batch while an update runs. Zero for long: the learner waits or is down.",
                ),
                Panel(
                    "Leases that expired",
                    (Query(f"sum by ({OF_RUN}) ({rate(store_stats.LEASES_EXPIRED.metric)})", "expired"),),
                    description="Batches a second whose learner did not renew its lease: it is lost, suspended or cut"
                    " off. Their trajectories are available again; a late commit is refused. Normal: none.",
                    unit="cps",
                ),
                Panel(
                    "Payload in the store",
                    (Query(f"sum by ({OF_RUN}) ({one(store_stats.RESIDENT_BYTES.metric)})", "bytes"),),
                    unit="bytes",
                    description="Trajectories that are neither trained nor dropped. Normal: flat. At"
                    " `max_resident_bytes` the store takes no more; see also the volumes.",
                ),
                Panel(
                    "Replay",
                    (
                        Query(f"sum by ({OF_RUN}) ({one(store_stats.REPLAY_FILL.metric)})", "fill"),
                        Query(
                            f"sum by ({OF_RUN}) ({one(store_stats.REPLAY_SAMPLES_PER_INSERT.metric)})",
                            "samples per insert",
                        ),
                        Query(
                            f"sum by ({OF_RUN}, {SIDE}) ({rate(store_stats.REPLAY_WAIT_S.metric)})",
                            f"{{{{{SIDE}}}}} wait",
                        ),
                        Query(
                            f"sum by ({OF_RUN}) ({rate(store_stats.REPLAY_PRIORITIES_REFUSED.metric)})",
                            "priorities refused",
                        ),
                        Query(
                            f"sum by ({OF_RUN}) ({rate(store_stats.REPLAY_PRIORITIES_IGNORED.metric)})",
                            "priorities ignored",
                        ),
                    ),
                    description="Share of the capacity in use, units drawn for each one inserted, the share of time"
                    " in which one side waits for the other, and priorities a second that were not used."
                    " Normal: samples per insert at the configured ratio. One side that waits most of the"
                    " time: the other one is too slow.",
                    only_with="`trajectory_store.replay`",
                ),
                Panel(
                    "Duplicates, revivals and recomputed updates",
                    (
                        Query(f"sum by ({OF_RUN}) ({rate(store_stats.DUPLICATES.metric)})", "duplicates"),
                        Query(f"sum by ({OF_RUN}) ({rate(store_stats.REVIVED.metric)})", "revived"),
                        Query(
                            f"sum by ({OF_RUN}) ({rate(learner_stats.UPDATES_RECOMPUTED.metric)})",
                            "recomputed updates",
                        ),
                    ),
                    description="Arrivals that were ignored, and work repeated after a restore. Normal: only after a"
                    " process was killed.",
                    unit="cps",
                ),
                Panel(
                    "Traces of dropped or late trajectories",
                    (
                        Query(f"sum by ({OF_RUN}) ({rate(names.METRIC_TRACE_DEFERRED)})", "exported"),
                        Query(
                            f"sum by ({OF_RUN}) ({rate(names.METRIC_TRACE_SUPPRESSED)})",
                            "withheld by the rate limit",
                        ),
                    ),
                    description="Exported although they were not sampled. Withheld: more than 50 a second in one"
                    " process. Normal: few.",
                    unit="cps",
                ),
            ),
        ),
    ),
)
