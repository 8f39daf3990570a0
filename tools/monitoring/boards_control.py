"""Dashboards of the control of a run: versions, weights, admission and scaling, Kubernetes."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import telemetry as names
from tidegate.catalogue import weight_distribution as weights_stats
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import (
    CAUSE,
    OUTCOME,
    one,
    quantiles,
    rate,
    total,
    total_rate,
)
from tools.monitoring.slo_rules import RUN

VERSIONS = Board(
    uid="tidegate-versions",
    title="Tidegate / Versions and weights",
    description="Propagation of new policy versions to the actors.",
    rows=(
        Row(
            "Versions",
            (
                Panel(
                    "Version of the learner and of the actors",
                    (
                        Query(f"max by ({RUN}) ({one(learner_stats.VERSION_STEP.metric)})", "learner"),
                        Query(f"max by ({RUN}) ({one(actor_stats.SERVING_STEP.metric)})", "newest actor"),
                        Query(f"min by ({RUN}) ({one(actor_stats.SERVING_STEP.metric)})", "oldest actor"),
                    ),
                ),
                Panel(
                    "Versions between the learner and the oldest actor",
                    (
                        Query(
                            f"max by ({RUN}) ({one(learner_stats.VERSION_STEP.metric)})"
                            f" - min by ({RUN}) ({one(actor_stats.SERVING_STEP.metric)})",
                            "versions",
                        ),
                    ),
                ),
                Panel(
                    "Propagation, from publication to an actor that serves it",
                    quantiles(names.METRIC_WEIGHTS_PROPAGATION),
                    unit="s",
                ),
            ),
        ),
        Row(
            "Weights",
            (
                Panel("Duration of publication", quantiles(names.METRIC_WEIGHTS_PUBLISH), unit="s"),
                Panel("Duration of an actor's load", quantiles(names.METRIC_WEIGHTS_LOAD), unit="s"),
                Panel(
                    "Bytes per second",
                    (
                        Query(
                            f"sum by ({label(names.ATTR_KIND)}) ({rate(names.METRIC_WEIGHTS_BYTES)})",
                            f"{{{{{label(names.ATTR_KIND)}}}}}",
                        ),
                    ),
                    unit="Bps",
                ),
                Panel(
                    "Versions published per second",
                    (Query(f"sum({rate(weights_stats.PUBLISHED.metric)})", "published"),),
                ),
                Panel(
                    "Versions available",
                    (Query(f"sum({one(weights_stats.KEPT_VERSIONS.metric)})", "available"),),
                    kind="stat",
                ),
            ),
        ),
    ),
)

ADMISSION = Board(
    uid="tidegate-admission",
    title="Tidegate / Admission and scaling",
    description="Admission of work, the causes of delays, and the scaling of actors.",
    rows=(
        Row(
            "Admission",
            (
                Panel(
                    "Decisions per second",
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
                        Query(f"sum({one(admission_stats.CAPACITY.metric)})", "admissible now"),
                        Query(
                            f"sum({one(admission_stats.MAX_RUNNING.metric)})", "limit on running trajectories"
                        ),
                    ),
                ),
                Panel("Staleness budget", (Query(f"max({one(admission_stats.MAX_LAG.metric)})", "max_lag"),)),
                Panel(
                    "Paused", (Query(f"max({one(admission_stats.PAUSED.metric)})", "paused"),), kind="stat"
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
                            f"max by ({label(names.ATTR_MODE)}) ({one(admission_stats.SCALING_MODE.metric)})",
                            f"{{{{{label(names.ATTR_MODE)}}}}}",
                        ),
                    ),
                    kind="timeline",
                ),
                Panel(
                    "Actors reporting", (Query(f"count({one(actor_stats.SERVING_STEP.metric)})", "actors"),)
                ),
                Panel(
                    "Trajectories running, and trained but not announced",
                    (
                        Query(f"sum({one(queue_stats.UNANNOUNCED_TRAJECTORIES.metric)})", "unannounced"),
                        Query(f"sum({one(queue_stats.RUNNING_TRAJECTORIES.metric)})", "running"),
                    ),
                ),
            ),
        ),
        Row(
            "Recommendation",
            (
                Panel(
                    "Actors reporting, recommended and needed",
                    (
                        total(admission_stats.SCALING_CURRENT.metric, "reporting"),
                        total(admission_stats.SCALING_RECOMMENDED.metric, "recommended next"),
                        total(admission_stats.SCALING_NEEDED.metric, "needed"),
                    ),
                    only_with="a scaling recommendation",
                ),
                Panel(
                    "Goodput",
                    (total(admission_stats.GOODPUT.metric, "trajectories per second"),),
                    description="Trained trajectories per second, weighted by their effective sample size.",
                ),
                Panel(
                    "Hard synchronisations, by outcome",
                    (Query(f"sum by ({OUTCOME}) ({one(names.METRIC_HARD_SYNCS)})", f"{{{{{OUTCOME}}}}}"),),
                    kind="stat",
                ),
            ),
        ),
        Row(
            "Kubernetes",
            (
                Panel(
                    "Requests to the API per second",
                    (
                        total_rate(admission_stats.KUBERNETES_REQUESTS.metric, "requests"),
                        total_rate(admission_stats.KUBERNETES_FAILURES.metric, "failed"),
                        total_rate(admission_stats.KUBERNETES_CONFLICTS.metric, "conflicts"),
                    ),
                    only_with="Kubernetes",
                ),
                Panel(
                    "Leader",
                    (Query(one(admission_stats.KUBERNETES_LEADER.metric), "{{instance}}"),),
                    kind="timeline",
                    only_with="Kubernetes",
                ),
                Panel(
                    "Scaled or annotated by other managers",
                    (
                        total(admission_stats.FOREIGN_SCALES.metric, "scalings"),
                        total(admission_stats.FOREIGN_POD_COSTS.metric, "pod deletion costs"),
                    ),
                    kind="stat",
                    description="Admission leaves such a scale alone for `scaling.hold_s`, and such pods always.",
                    only_with="Kubernetes",
                ),
            ),
        ),
    ),
)
