"""Dashboards of what holds a run together: versions, weights, admission."""

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
    one,
    quantiles,
    rate,
)
from tools.monitoring.slo_rules import RUN

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
                        Query(f"max by ({RUN}) ({one(learner_stats.VERSION_STEP.metric)})", "learner"),
                        Query(f"max by ({RUN}) ({one(actor_stats.SERVING_STEP.metric)})", "newest actor"),
                        Query(f"min by ({RUN}) ({one(actor_stats.SERVING_STEP.metric)})", "oldest actor"),
                    ),
                ),
                Panel(
                    "Learner ahead of the oldest actor",
                    (
                        Query(
                            f"max by ({RUN}) ({one(learner_stats.VERSION_STEP.metric)})"
                            f" - min by ({RUN}) ({one(actor_stats.SERVING_STEP.metric)})",
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
                    (Query(f"sum({rate(weights_stats.PUBLISHED.metric)})", "published"),),
                ),
                Panel(
                    "Versions kept",
                    (Query(f"sum({one(weights_stats.KEPT_VERSIONS.metric)})", "kept"),),
                    kind="stat",
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
                        Query(f"sum({one(admission_stats.CAPACITY.metric)})", "may be admitted now"),
                        Query(f"sum({one(admission_stats.MAX_RUNNING.metric)})", "limit on running"),
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
                    "Actors that report", (Query(f"count({one(actor_stats.SERVING_STEP.metric)})", "actors"),)
                ),
                Panel(
                    "Running, and trained but not announced",
                    (
                        Query(f"sum({one(queue_stats.UNANNOUNCED_TRAJECTORIES.metric)})", "unannounced"),
                        Query(f"sum({one(queue_stats.RUNNING_TRAJECTORIES.metric)})", "running"),
                    ),
                ),
            ),
        ),
    ),
)
