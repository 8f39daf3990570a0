"""Dashboard of policy versions and their way to the actors."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import telemetry as names
from tidegate.catalogue import weight_distribution as weights_stats
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import (
    one,
    quantiles,
    rate,
)
from tools.monitoring.slo_rules import OF_RUN

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
                        Query(f"max by ({OF_RUN}) ({one(learner_stats.VERSION_STEP.metric)})", "learner"),
                        Query(f"max by ({OF_RUN}) ({one(actor_stats.SERVING_STEP.metric)})", "newest actor"),
                        Query(f"min by ({OF_RUN}) ({one(actor_stats.SERVING_STEP.metric)})", "oldest actor"),
                    ),
                    description="Normal: three lines close together. The oldest actor falls behind: it cannot pull or"
                    " load; see the actors' dashboard.",
                ),
                Panel(
                    "Versions between the learner and the oldest actor",
                    (
                        Query(
                            f"max by ({OF_RUN}) ({one(learner_stats.VERSION_STEP.metric)})"
                            f" - min by ({OF_RUN}) ({one(actor_stats.SERVING_STEP.metric)})",
                            "versions",
                        ),
                    ),
                    description="Normal: 0 to 2. Above `max_lag` that actor's work is dropped; see the alert"
                    " TidegateWeightsStuck.",
                ),
                Panel(
                    "Propagation, from publication to an actor that serves it",
                    quantiles(names.METRIC_WEIGHTS_PROPAGATION),
                    unit="s",
                    description="Normal: seconds, for large models tens of seconds. Rising with the number of actors:"
                    " the network of weight distribution is full.",
                ),
            ),
        ),
        Row(
            "Weights",
            (
                Panel(
                    "Duration of publication",
                    quantiles(names.METRIC_WEIGHTS_PUBLISH),
                    unit="s",
                    description="Time for the learner to publish a version. Normal: stable. Longer: the disk or the"
                    " network of weight distribution.",
                ),
                Panel(
                    "Duration of an actor's load",
                    quantiles(names.METRIC_WEIGHTS_LOAD),
                    unit="s",
                    description="Time for an actor to load a version. Normal: stable. Longer on one node: its disk or"
                    " network.",
                ),
                Panel(
                    "Bytes per second",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {label(names.ATTR_KIND)}) ({rate(names.METRIC_WEIGHTS_BYTES)})",
                            f"{{{{{label(names.ATTR_KIND)}}}}}",
                        ),
                    ),
                    unit="Bps",
                    description="Weights published and pulled. Normal: pulled is published times the number of"
                    " actors. Compare with the network of that node.",
                ),
                Panel(
                    "Versions published per second",
                    (Query(f"sum by ({OF_RUN}) ({rate(weights_stats.PUBLISHED.metric)})", "published"),),
                    description="Normal: the rate of updates. Lower: publishing is slower than training.",
                    unit="cps",
                ),
                Panel(
                    "Versions available",
                    (Query(f"sum by ({OF_RUN}) ({one(weights_stats.KEPT_VERSIONS.metric)})", "available"),),
                    kind="stat",
                    description="Versions that an actor may pull. Normal: the configured number. Fewer: the disk is"
                    " full.",
                ),
            ),
        ),
    ),
)
