"""Dashboards of who does the work: actors, the learner, the broker."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process as process_stats
from tidegate.catalogue import telemetry as names
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
                    (Query(f"count by ({RUN}) ({one(actor_stats.SERVING_STEP.metric)})", f"{{{{{RUN}}}}}"),),
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
                    (Query(f"sum by (instance) ({rate(actor_stats.STEPS.metric)})", "{{instance}}"),),
                ),
                Panel(
                    "Trajectories a second, each",
                    (Query(f"sum by (instance) ({rate(actor_stats.TRAJECTORIES.metric)})", "{{instance}}"),),
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
                            f"scalar(max({one(learner_stats.VERSION_STEP.metric)}))"
                            f" - {one(actor_stats.SERVING_STEP.metric)}",
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
                    (Query(f"sum by (job) ({rate(process_stats.CPU_S.metric)})", "{{job}}"),),
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Memory",
                    (Query(f"sum by (job) ({one(process_stats.RSS_MB.metric)})", "{{job}}"),),
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
                    (Query(f"max by ({RUN}) ({one(learner_stats.MEAN_RETURN.metric)})", f"{{{{{RUN}}}}}"),),
                ),
                Panel(
                    "Loss", (Query(f"max by ({RUN}) ({one(learner_stats.LOSS.metric)})", f"{{{{{RUN}}}}}"),)
                ),
                Panel(
                    "Effective sample size and clipped",
                    (
                        Query(f"max({one(learner_stats.ESS.metric)})", "effective sample size"),
                        Query(f"max({one(learner_stats.CLIPPED_FRACTION.metric)})", "clipped"),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    "Steps trained a second",
                    (Query(f"sum({rate(learner_stats.TRAINED_STEPS.metric)})", "steps"),),
                ),
                Panel(
                    "Versions a second",
                    (Query(f"sum(rate({one(learner_stats.VERSION_STEP.metric)}[{RATE}]))", "versions"),),
                ),
                Panel(
                    "Graded response",
                    (Query(f"max({one(learner_stats.RESPONSE_TIER.metric)})", "tier"),),
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
                        Query(f"sum({rate(learner_stats.OUTDATED_BATCHES.metric)})", "outdated batches"),
                        Query(f"sum({rate(learner_stats.CHECKPOINTS.metric)})", "checkpoints"),
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
                    "Backpressure",
                    (Query(f"sum by (job) ({rate(process_stats.BACKPRESSURE.metric)})", "{{job}}"),),
                ),
                Panel(
                    "Reconnects",
                    (
                        Query(
                            f"sum by (job) (increase({one(process_stats.BROKER_RECONNECTS.metric)}[{RATE}]))",
                            "{{job}}",
                        ),
                    ),
                ),
                Panel("Quarantined", (Query(f"sum by (job) ({one(names.METRIC_QUARANTINED)})", "{{job}}"),)),
            ),
        ),
    ),
)
