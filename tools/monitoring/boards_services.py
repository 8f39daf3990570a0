"""Dashboards of who does the work: actors, the learner, the broker."""

from tidegate.runtime import telemetry_names as names
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.queries import (
    CAUSE,
    CONSUMER,
    JOB_OF,
    QUEUE,
    RATE,
    STAGE,
    STATE,
    STREAM,
    buckets,
    equal,
    one,
    quantiles,
    rate,
)
from tools.monitoring.slo_rules import RUN

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
