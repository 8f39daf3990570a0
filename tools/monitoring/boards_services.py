"""Dashboards of the services that do the work: actors and environments, the learner, the broker."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import environment as environment_stats
from tidegate.catalogue import gateway as gateway_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process as process_stats
from tidegate.catalogue import publishing as publishing_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.inference_row import INFERENCE
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import (
    CAUSE,
    CONSUMER,
    JOB_OF,
    KIND,
    OPERATION,
    OUTCOME,
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
    rate_by,
    total,
    total_rate,
)
from tools.monitoring.slo_rules import RUN

HTTP_STATUS = label(names.ATTR_HTTP_STATUS)
RPC_METHOD = label(names.ATTR_RPC_METHOD)

ACTORS = Board(
    uid="tidegate-actors",
    title="Tidegate / Actors and environments",
    description="Time, throughput and policy versions of the actors and the environment workers.",
    rows=(
        Row(
            "Actors",
            (
                Panel(
                    "Actors reporting",
                    (Query(f"count by ({RUN}) ({one(actor_stats.SERVING_STEP.metric)})", f"{{{{{RUN}}}}}"),),
                    kind="stat",
                ),
                Panel(
                    "Time by state",
                    (
                        Query(
                            f"sum by ({STATE}) ({rate(names.METRIC_WORKER_TIME, JOB_OF['actor'])})",
                            f"{{{{{STATE}}}}}",
                        ),
                    ),
                    unit="s",
                    stacked=True,
                    description="Seconds per second, summed over all actors.",
                ),
                Panel(
                    "Steps per second, by actor",
                    (Query(f"sum by (instance) ({rate(actor_stats.STEPS.metric)})", "{{instance}}"),),
                ),
                Panel(
                    "Trajectories per second, by actor",
                    (Query(f"sum by (instance) ({rate(actor_stats.TRAJECTORIES.metric)})", "{{instance}}"),),
                ),
                Panel(
                    "Tasks redelivered and failed per second",
                    (
                        Query(f"sum({rate(names.METRIC_REDELIVERED)})", "redelivered"),
                        Query(
                            f"sum({rate(names.METRIC_STAGE_ERRORS, equal(STAGE, names.SPAN_GENERATE))})",
                            "failed",
                        ),
                    ),
                ),
                Panel(
                    "Versions behind the learner, by actor",
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
            "Environments of segments",
            (
                Panel(
                    "Faults of environments per second, by kind",
                    (rate_by(actor_stats.ENVIRONMENT_FAULTS.metric, KIND),),
                    description="A copy that raised or returned NaN is made again; one that hung costs its actor.",
                    only_with="environments that fail",
                ),
                Panel(
                    "Longest call into an environment, by actor",
                    (
                        Query(
                            f"max by (instance) ({one(actor_stats.ENVIRONMENT_CALL_S.metric)})",
                            "{{instance}}",
                        ),
                    ),
                    unit="s",
                    description="0 while calls return within two seconds; ends at `workload.step_timeout_s`.",
                    only_with="segments",
                ),
            ),
        ),
        INFERENCE,
        Row(
            "Partial rollouts and policies",
            (
                Panel(
                    "Tokens of partial rollouts per second",
                    (rate_by(names.METRIC_ROLLOUT_TOKENS, KIND),),
                    description="Lost tokens are generated again; released ones are resumed by another actor.",
                    only_with="language-model rollouts",
                ),
                Panel(
                    "Rollouts resumed per second, by outcome",
                    (rate_by(names.METRIC_ROLLOUT_RESUMPTIONS, KIND),),
                    only_with="language-model rollouts",
                ),
                Panel(
                    "Trajectories cut and stopped early per second",
                    (
                        total_rate(actor_stats.CUT.metric, "cut"),
                        total_rate(actor_stats.EARLY_STOPPED.metric, "stopped early"),
                    ),
                    only_with="`long_tail` settings",
                ),
                Panel(
                    "Policies refused and weight swaps per second",
                    (
                        total_rate(actor_stats.POLICIES_REFUSED.metric, "refused"),
                        total_rate(actor_stats.SWAPS.metric, "swaps"),
                    ),
                ),
                Panel(
                    "Evaluations: share of problems solved",
                    (Query(f"max by ({RUN}) ({one(actor_stats.EVALUATION_SOLVED_SHARE.metric)})", "solved"),),
                    unit="percentunit",
                    only_with="evaluations of text",
                ),
                Panel(
                    "Evaluations: return of greedy episodes",
                    (
                        Query(f"max by ({RUN}) ({one(actor_stats.EVALUATION_RETURN.metric)})", "mean"),
                        Query(f"max by ({RUN}) ({one(actor_stats.EVALUATION_RETURN_MIN.metric)})", "lowest"),
                        Query(f"max by ({RUN}) ({one(actor_stats.EVALUATION_RETURN_MAX.metric)})", "highest"),
                    ),
                    only_with="evaluations of segments",
                ),
                Panel(
                    "Tool sessions per second, by outcome",
                    (rate_by(names.METRIC_SESSIONS, OUTCOME),),
                    only_with="multi-turn environments",
                ),
            ),
        ),
        Row(
            "Environments",
            (
                Panel(
                    "Trajectories scored per second",
                    (
                        total_rate(environment_stats.SCORED.metric, "scored"),
                        total_rate(environment_stats.CACHE_HITS.metric, "answered from the cache"),
                    ),
                    width=12,
                    only_with="environment workers",
                ),
                Panel(
                    "Open tool sessions",
                    (total(environment_stats.SESSIONS.metric, "open"),),
                    width=12,
                    only_with="multi-turn environments",
                ),
            ),
        ),
        Row(
            "Gateway",
            (
                Panel(
                    "Calls of agents per second",
                    (
                        total_rate(gateway_stats.CALLS.metric, "answered"),
                        Query(
                            f"sum by ({HTTP_STATUS}) ({rate(gateway_stats.REFUSED.metric)})",
                            f"refused with {{{{{HTTP_STATUS}}}}}",
                        ),
                    ),
                    only_with="`actor.gateway`",
                ),
                Panel(
                    "Episodes of agents",
                    (
                        total(gateway_stats.OPEN_EPISODES.metric, "open"),
                        total_rate(gateway_stats.EPISODES.metric, "ended per second"),
                    ),
                    only_with="`actor.gateway`",
                ),
                Panel(
                    "Episodes without a result per second, by cause",
                    (rate_by(names.METRIC_GATEWAY_FAILURES, CAUSE),),
                    description="No call, no reward, or an agent program that exited with an error.",
                    only_with="`actor.gateway`",
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
    description="Learning curves, waits, and the cost of an update.",
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
                    "Effective sample size and clipped share",
                    (
                        Query(f"max({one(learner_stats.ESS.metric)})", "effective sample size"),
                        Query(f"max({one(learner_stats.CLIPPED_FRACTION.metric)})", "clipped"),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    "Steps trained per second",
                    (Query(f"sum({rate(learner_stats.TRAINED_STEPS.metric)})", "steps"),),
                ),
                Panel(
                    "Versions per second",
                    (Query(f"sum(rate({one(learner_stats.VERSION_STEP.metric)}[{RATE}]))", "versions"),),
                ),
                Panel(
                    "Divergence from the generating policy",
                    (Query(f"max({one(learner_stats.MISMATCH_KL.metric)})", "KL"),),
                    description="Mean KL divergence in nats.",
                ),
                Panel(
                    "Divergence from the reference policy",
                    (Query(f"max({one(learner_stats.REFERENCE_KL.metric)})", "KL"),),
                    description="Mean KL divergence in nats.",
                    only_with="a reference policy",
                ),
                Panel(
                    "Entropy and gradient norm",
                    (
                        Query(f"max({one(learner_stats.ENTROPY.metric)})", "entropy"),
                        Query(f"max({one(learner_stats.GRAD_NORM.metric)})", "gradient norm"),
                    ),
                ),
                Panel(
                    "Checkpoints that failed",
                    (
                        total(learner_stats.CHECKPOINT_FAILURES.metric, "not written"),
                        total(learner_stats.CORRUPT_CHECKPOINTS.metric, "not readable"),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Tier of the graded response",
                    (Query(f"max({one(learner_stats.RESPONSE_TIER.metric)})", "tier"),),
                    kind="stat",
                ),
            ),
        ),
        Row(
            "Time",
            (
                Panel("Duration of an update", quantiles(names.METRIC_STEP_DURATION), unit="s"),
                Panel(
                    "Waiting time, by cause",
                    (Query(f"sum by ({CAUSE}) ({rate(names.METRIC_LEARNER_WAIT)})", f"{{{{{CAUSE}}}}}"),),
                    unit="percentunit",
                    stacked=True,
                ),
                Panel(
                    "Time by state",
                    (
                        Query(
                            f"sum by ({STATE}) ({rate(names.METRIC_WORKER_TIME, JOB_OF['learner'])})",
                            f"{{{{{STATE}}}}}",
                        ),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    "Versions within a trajectory",
                    (Query(buckets(names.METRIC_VERSION_SPAN), "{{le}}"),),
                    kind="heatmap",
                ),
                Panel(
                    "Outdated batches and checkpoints per second",
                    (
                        Query(f"sum({rate(learner_stats.OUTDATED_BATCHES.metric)})", "outdated batches"),
                        Query(f"sum({rate(learner_stats.CHECKPOINTS.metric)})", "checkpoints"),
                    ),
                ),
                Panel(
                    "Trajectories with incomplete provenance",
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
    description="Streams and consumers, as admission measures them; no NATS exporter is needed.",
    rows=(
        Row(
            "Streams",
            (
                Panel(
                    "Messages in each stream",
                    (Query(f"sum by ({STREAM}) ({one(names.METRIC_STREAM_MESSAGES)})", f"{{{{{STREAM}}}}}"),),
                ),
                Panel(
                    "Bytes in each stream",
                    (Query(f"sum by ({STREAM}) ({one(names.METRIC_STREAM_BYTES)})", f"{{{{{STREAM}}}}}"),),
                    unit="bytes",
                ),
                Panel(
                    "Fullness against the tightest limit",
                    (Query(f"max by ({STREAM}) ({one(names.METRIC_STREAM_FULLNESS)})", f"{{{{{STREAM}}}}}"),),
                    unit="percentunit",
                ),
                Panel(
                    "Backlog before each stage",
                    (Query(f"sum by ({QUEUE}) ({one(names.METRIC_QUEUE_DEPTH)})", f"{{{{{QUEUE}}}}}"),),
                ),
            ),
        ),
        Row(
            "Consumers",
            (
                Panel(
                    "Messages not yet delivered",
                    (
                        Query(
                            f"sum by ({CONSUMER}) ({one(names.METRIC_CONSUMER_PENDING)})",
                            f"{{{{{CONSUMER}}}}}",
                        ),
                    ),
                ),
                Panel(
                    "Messages delivered, not acknowledged",
                    (
                        Query(
                            f"sum by ({CONSUMER}) ({one(names.METRIC_CONSUMER_ACK_PENDING)})",
                            f"{{{{{CONSUMER}}}}}",
                        ),
                    ),
                ),
                Panel(
                    "Messages delivered more than once",
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
            "Faults",
            (
                Panel(
                    "Publishes delayed by a full stream, per second",
                    (Query(f"sum by (job) ({rate(process_stats.BACKPRESSURE.metric)})", "{{job}}"),),
                ),
                Panel(
                    "Reconnects to the broker",
                    (
                        Query(
                            f"sum by (job) (increase({one(process_stats.BROKER_RECONNECTS.metric)}[{RATE}]))",
                            "{{job}}",
                        ),
                    ),
                ),
                Panel("Retries per second, by operation", (rate_by(names.METRIC_RETRIES, OPERATION),)),
                Panel(
                    "Payloads uploaded per second",
                    (Query(f"sum by (job) ({rate(publishing_stats.UPLOADS.metric)})", "{{job}}"),),
                    description="Too large for a message: uploaded to the store and published by reference.",
                ),
                Panel(
                    "Invalid gRPC calls per second, by method",
                    (rate_by(process_stats.CALLS_INVALID.metric, RPC_METHOD),),
                    description="Refused with INVALID_ARGUMENT: the caller sent what the service cannot accept.",
                    only_with="invalid calls",
                ),
                Panel(
                    "gRPC calls refused for their caller, per second",
                    (rate_by(process_stats.CALLS_REFUSED_BECAUSE.metric, CAUSE),),
                    description="No accepted credential, or a role that may not call the method.",
                ),
                Panel(
                    "Failed gRPC calls per second, by method",
                    (rate_by(process_stats.CALLS_FAILED.metric, RPC_METHOD),),
                    description="Ended by a defect; the service's log has the traceback under call_failed.",
                    only_with="a defect in a service",
                ),
                Panel(
                    "Messages of state ignored per second, by stream",
                    (rate_by(names.METRIC_IGNORED, STREAM),),
                    description="Unreadable: the service keeps what it knows.",
                    only_with="unreadable messages",
                ),
                Panel(
                    "Messages quarantined",
                    (Query(f"sum by (job) ({one(names.METRIC_QUARANTINED)})", "{{job}}"),),
                ),
            ),
        ),
    ),
)
