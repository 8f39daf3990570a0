"""Dashboard of the learner."""

from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import (
    CAUSE,
    JOB_OF,
    RATE,
    STATE,
    buckets,
    one,
    quantiles,
    rate,
    total,
)
from tools.monitoring.slo_rules import OF_RUN

HTTP_STATUS = label(names.ATTR_HTTP_STATUS)
RPC_METHOD = label(names.ATTR_RPC_METHOD)

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
                    (Query(f"max by ({OF_RUN}) ({one(learner_stats.MEAN_RETURN.metric)})"),),
                    description="Mean return of the last episodes. Normal: rises, with noise. A sudden fall: compare"
                    " with lag, divergence and gradient norm at the same time.",
                ),
                Panel(
                    "Loss",
                    (Query(f"max by ({OF_RUN}) ({one(learner_stats.LOSS.metric)})"),),
                    description="Loss of the newest update. Its level says little; a jump or NaN does: see gradient"
                    " norm, and `tidegate explain`.",
                ),
                Panel(
                    "Effective sample size and clipped share",
                    (
                        Query(
                            f"max by ({OF_RUN}) ({one(learner_stats.ESS.metric)})", "effective sample size"
                        ),
                        Query(f"max by ({OF_RUN}) ({one(learner_stats.CLIPPED_FRACTION.metric)})", "clipped"),
                    ),
                    unit="percentunit",
                    description="Effective sample size as a share of the batch, and the share that was clipped."
                    " Normal: above 50 %, and below 20 %. Otherwise data is too old: lower `max_lag`.",
                ),
                Panel(
                    "Steps trained per second",
                    (Query(f"sum by ({OF_RUN}) ({rate(learner_stats.TRAINED_STEPS.metric)})", "steps"),),
                    description="Environment steps or tokens in updates. Normal: stable. Lower with the same batch:"
                    " updates take longer or the learner waits; see Time.",
                    unit="cps",
                ),
                Panel(
                    "Versions per second",
                    (
                        Query(
                            f"sum by ({OF_RUN}) (rate({one(learner_stats.VERSION_STEP.metric)}[{RATE}]))",
                            "versions",
                        ),
                    ),
                    description="Updates a second. Normal: stable. Zero: the learner is down, waits for batches, or"
                    " admission is paused.",
                    unit="cps",
                ),
                Panel(
                    "Divergence from the generating policy",
                    (Query(f"max by ({OF_RUN}) ({one(learner_stats.MISMATCH_KL.metric)})", "KL"),),
                    description="Mean KL divergence in nats. Normal: below 0.1. A rise: data is too old, or the"
                    " actors compute other probabilities than the learner.",
                ),
                Panel(
                    "Divergence from the reference policy",
                    (Query(f"max by ({OF_RUN}) ({one(learner_stats.REFERENCE_KL.metric)})", "KL"),),
                    description="Mean KL divergence in nats. Normal: rises slowly. A fast rise: raise the KL weight"
                    " or lower the learning rate.",
                    only_with="a reference policy",
                ),
                Panel(
                    "Entropy and gradient norm",
                    (
                        Query(f"max by ({OF_RUN}) ({one(learner_stats.ENTROPY.metric)})", "entropy"),
                        Query(f"max by ({OF_RUN}) ({one(learner_stats.GRAD_NORM.metric)})", "gradient norm"),
                    ),
                    description="Entropy in nats. Normal: entropy falls slowly, the norm is stable. Entropy near"
                    " zero: the policy stopped exploring. Spikes of the norm: lower the learning rate.",
                ),
                Panel(
                    "Checkpoints that failed",
                    (
                        total(learner_stats.CHECKPOINT_FAILURES.metric, "not written"),
                        total(learner_stats.CORRUPT_CHECKPOINTS.metric, "not readable"),
                    ),
                    kind="stat",
                    description="Checkpoints that could not be written, or not be read at a start. Normal: none. Not"
                    " written: the volume is full or read-only.",
                    unit="none",
                ),
                Panel(
                    "Tier of the graded response",
                    (Query(f"max by ({OF_RUN}) ({one(learner_stats.RESPONSE_TIER.metric)})", "tier"),),
                    kind="stat",
                    description="0: normal training. Higher tiers train more cautiously because lag is high. A"
                    " lasting tier above 0: treat lag.",
                ),
            ),
        ),
        Row(
            "Time",
            (
                Panel(
                    "Duration of an update",
                    quantiles(names.METRIC_STEP_DURATION),
                    unit="s",
                    description="From a batch to the new parameters. Normal: stable. Longer: longer sequences, a"
                    " slower machine, or a rank that is slow.",
                ),
                Panel(
                    "Waiting time, by cause",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {CAUSE}) ({rate(names.METRIC_LEARNER_WAIT)})",
                            f"{{{{{CAUSE}}}}}",
                        ),
                    ),
                    unit="percentunit",
                    stacked=True,
                    description="Share of time in which the learner trains nothing. empty: too few actors. stale:"
                    " rollouts too long. weights: publishing is slow. Normal: below 20 %.",
                ),
                Panel(
                    "Time by state",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {STATE}) ({rate(names.METRIC_WORKER_TIME, JOB_OF['learner'])})",
                            f"{{{{{STATE}}}}}",
                        ),
                    ),
                    unit="percentunit",
                    description="Share of time in updates, waits, commits and publication. Normal: mostly busy.",
                ),
                Panel(
                    "Versions within a trajectory",
                    (Query(buckets(names.METRIC_VERSION_SPAN), "{{le}}"),),
                    kind="heatmap",
                    description="Newest minus oldest version that generated one trajectory. Normal: 0 and 1. Many"
                    " above: rollouts last several updates.",
                ),
                Panel(
                    "Outdated batches and checkpoints per second",
                    (
                        Query(
                            f"sum by ({OF_RUN}) ({rate(learner_stats.OUTDATED_BATCHES.metric)})",
                            "outdated batches",
                        ),
                        Query(f"sum by ({OF_RUN}) ({rate(learner_stats.CHECKPOINTS.metric)})", "checkpoints"),
                    ),
                    description="Outdated: leased batches that exceeded the budget before their update and were"
                    " released. Normal: none, and checkpoints at a steady rate.",
                    unit="cps",
                ),
                Panel(
                    "Trajectories with incomplete provenance",
                    (
                        Query(
                            f"sum by ({OF_RUN}) ({one(names.METRIC_PROVENANCE_INCOMPLETE)})", "trajectories"
                        ),
                    ),
                    kind="stat",
                    description="Trained trajectories without the timing of a stage. Normal: none. Look for actors of"
                    " another image version.",
                ),
            ),
        ),
    ),
)
