"""Dashboards of what holds a run together: versions, weights, admission."""

from tidegate.runtime import telemetry_names as names
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
