"""Statistics of the learner."""

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text
from tidegate.catalogue.telemetry import (
    ATTR_LAG_BUCKET,
    ATTR_OPERATION,
    ATTR_PHASE,
    ATTR_SLO,
    ATTR_STAGE,
    ATTR_STATE,
    METRIC_RANK_TIME,
    METRIC_RETRIES,
    METRIC_STAGE_ERRORS,
    METRIC_WORKER_TIME,
    SPAN_CONSUME,
)
from tidegate.core.lag_classes import MISMATCH_PREFIX

VERSION_STEP = Gauge(
    "version_step",
    "{version}",
    "Newest policy version, as the step of its lineage.",
    exported="tidegate.learner.policy_version",
)
VERSION = Text("version", "Newest policy version, with its lineage.", exported=False)
PUBLISHED_VERSION = Text("published_version", "Newest version given to weight distribution.", exported=False)
PUBLISHED_AT_S = Gauge(
    "published_at_s", "s", "Unix time at which it was given to weight distribution.", exported=False
)
TRAINED_TRAJECTORIES = Counter(
    "trained_trajectories_total", "{trajectory}", "Trajectories trained in this lineage.", exported=False
)
TRAINED_STEPS = Counter(
    "trained_steps_total",
    "{step}",
    "Environment steps or tokens trained.",
    exported="tidegate.learner.steps",
)
SAMPLED_UNITS = Counter(
    "sampled_units_total",
    "{unit}",
    "Units of replay trained, one for each use.",
    exported="tidegate.learner.sampled_units",
)
EPISODES = Counter(
    "episodes_total", "{episode}", "Episodes that ended.", exported="tidegate.learner.episodes"
)
MEAN_RETURN = Gauge(
    "mean_return", "", "Mean return of the last episodes.", exported="tidegate.learner.mean_return"
)
MEAN_REWARD = Gauge(
    "mean_reward", "", "Mean reward of the newest batch.", exported="tidegate.learner.mean_reward"
)
WARMUP_STEPS = Gauge("warmup_steps", "{step}", "Gradient steps of the supervised warm-up.", exported=False)
WARMUP_SOLVED_SHARE = Gauge(
    "warmup_solved_share", "1", "Share of problems solved during the warm-up.", exported=False
)
WARMUP_HELDOUT_LOSS = Gauge(
    "warmup_heldout_loss",
    "",
    "Loss of a pretrained model on held-out demonstrations during the warm-up, in nats a token.",
    exported=False,
)
REPLICAS = Gauge("replicas", "{rank}", "Data-parallel ranks.", exported="tidegate.learner.ranks")

BUSY_S = Counter(
    "busy_s_total", "s", "Time spent in updates.", exported=METRIC_WORKER_TIME.of({ATTR_STATE: "busy"})
)
WAIT_BATCH_S = Counter(
    "wait_batch_s_total",
    "s",
    "Time spent waiting for a batch.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_batch"}),
)
COMMIT_S = Counter(
    "commit_s_total",
    "s",
    "Time spent committing trained batches to the store.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "commit"}),
)
PUBLISH_S = Counter(
    "publish_s_total",
    "s",
    "Time spent publishing versions.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "publish"}),
)
UPDATE_DUE_AT_S = Gauge(
    "update_due_at_s",
    "s",
    "Unix time by which the update in progress should have ended: three times the longest update so far; 0 while none"
    " is in progress.",
    exported="tidegate.learner.update_due_time",
)
SEND_S = Counter(
    "send_s_total",
    "s",
    "Time spent sending batches to the other ranks.",
    exported=METRIC_RANK_TIME.of({ATTR_PHASE: "send"}),
)
REDUCE_S = Counter(
    "reduce_s_total",
    "s",
    "Time spent reducing gradients with the other ranks.",
    exported=METRIC_RANK_TIME.of({ATTR_PHASE: "reduce"}),
)
COMPUTE_S = Counter(
    "compute_s_total",
    "s",
    "Time spent computing gradients.",
    exported=METRIC_RANK_TIME.of({ATTR_PHASE: "compute"}),
)

LAG_LAST_MAX = Gauge("lag_last_max", "{version}", "Largest lag in the newest batch.", exported=False)
LAG_MEAN = Gauge("lag_mean", "{version}", "Mean lag of the last trained trajectories.", exported=False)
LAG_P95 = Gauge(
    "lag_p95", "{version}", "95th percentile of the lag of the last trained trajectories.", exported=False
)
AGE_LAST_P95_S = Gauge(
    "age_last_p95_s", "s", "95th percentile of the age in the newest batch.", exported=False
)
RESPONSE_TIER = Gauge(
    "response_tier",
    "{tier}",
    "Tier of the graded response to staleness that is in force.",
    exported="tidegate.response.tier",
)
RESPONSE_DRAIN = Gauge(
    "response_drain", "", "1 while the graded response asks admission to drain.", exported=False
)
SLO_GOOD = Family(
    Counter,
    "slo_good.*_total",
    "{trajectory}",
    "Trained trajectories within the bound of an objective; admission exports them.",
    label=ATTR_SLO,
    exported=False,
)
SLO_BAD = Family(
    Counter,
    "slo_bad.*_total",
    "{trajectory}",
    "Trained trajectories outside the bound of an objective; admission exports them.",
    label=ATTR_SLO,
    exported=False,
)

OUTDATED_BATCHES = Counter(
    "outdated_batches_total",
    "{batch}",
    "Leased batches that exceeded the staleness budget before their update and were released.",
    exported="tidegate.learner.outdated_batches",
    from_zero=True,
)
INVALID_BATCHES = Counter(
    "invalid_batches_total",
    "{error}",
    "Batches that the learner refused: they do not fit, or their update produced values that are not finite.",
    exported=METRIC_STAGE_ERRORS.of({ATTR_STAGE: SPAN_CONSUME}),
)
BATCH_REFUSAL = Text("batch_refusal", "Why the learner refused a batch last.", exported=False)
RETRIES = Counter(
    "retries_total",
    "{retry}",
    "Calls to the store and to weight distribution repeated after a transient failure.",
    exported=METRIC_RETRIES.of({ATTR_OPERATION: "learner_call"}),
    from_zero=True,
)
CHECKPOINTS = Counter(
    "checkpoints_total", "{checkpoint}", "Checkpoints written.", exported="tidegate.learner.checkpoints"
)
DEVICE = Text("device", "Device that the learner computes on, and why.", exported=False)
CHECKPOINT_S = Gauge(
    "checkpoint_s",
    "s",
    "Duration of writing the newest checkpoint, beside training.",
    exported="tidegate.learner.checkpoint.time",
)
STEP_LINES_LOST = Counter(
    "step_lines_lost_total", "{step}", "Lines of `steps.jsonl` that the disk refused.", exported=False
)
CHECKPOINT_FAILURES = Counter(
    "checkpoint_failures_total",
    "{checkpoint}",
    "Checkpoints that could not be written.",
    exported="tidegate.learner.checkpoint_failures",
    from_zero=True,
)
CORRUPT_CHECKPOINTS = Counter(
    "corrupt_checkpoints_total",
    "{checkpoint}",
    "Checkpoints that could not be read at the start, and were skipped.",
    exported="tidegate.learner.corrupt_checkpoints",
    from_zero=True,
)
CHECKPOINT_BEHIND = Gauge(
    "checkpoint_behind",
    "1",
    "Updates since the newest checkpoint, as a share of `learner.checkpoint_every_steps`.",
    exported="tidegate.learner.checkpoint.behind",
)
CHECKPOINTED = Text("checkpointed", "Version of the newest checkpoint.", exported=False)
UPDATES_RECOMPUTED = Counter(
    "updates_recomputed_total",
    "{update}",
    "Updates after the restored checkpoint that were recomputed from the batches that the store had.",
    exported="tidegate.learner.updates_recomputed",
    from_zero=True,
)
REVIVED_TRAJECTORIES = Gauge(
    "revived_trajectories",
    "{trajectory}",
    "Trajectories made available again by the restore at the start; the store exports them.",
    exported=False,
)

# What an objective and its optimizer report of each update (``algorithms.loss``).
LOSS = Gauge("loss", "", "Loss of the newest update.", exported="tidegate.learner.loss")
ESS = Gauge(
    "ess",
    "1",
    "Effective sample size of the newest batch, as a share of its size.",
    exported="tidegate.learner.effective_sample_size",
)
CLIPPED_FRACTION = Gauge(
    "clipped_fraction",
    "1",
    "Share of the newest batch whose gradient was clipped.",
    exported="tidegate.learner.clipped_fraction",
)
GRAD_NORM = Gauge(
    "grad_norm", "", "Gradient norm of the newest update.", exported="tidegate.learner.grad_norm"
)
LEARNING_RATE = Gauge(
    "learning_rate", "", "Learning rate of the newest update.", exported="tidegate.learner.learning_rate"
)
ENTROPY = Gauge("entropy", "", "Entropy of the policy, in nats.", exported="tidegate.learner.entropy")
MISMATCH_KL = Gauge(
    "mismatch_kl",
    "",
    "Divergence of the trained policy from the one that generated the batch, in nats.",
    exported="tidegate.learner.mismatch_kl",
)
REFERENCE_KL = Gauge(
    "reference_kl",
    "",
    "Divergence of the trained policy from the reference policy, in nats.",
    exported="tidegate.learner.reference_kl",
)
EXPLAINED_VARIANCE = Gauge(
    "explained_variance",
    "1",
    "Share of the returns' variance that the critic explains.",
    exported="tidegate.learner.explained_variance",
)
ZERO_SIGNAL_FRACTION = Gauge(
    "zero_signal_fraction",
    "1",
    "Share of the newest batch in groups of equal rewards.",
    exported="tidegate.learner.zero_signal_fraction",
)
MISMATCH_KL_BY_LAG = Family(
    Gauge,
    f"{MISMATCH_PREFIX}*",
    "",
    "The same divergence of what was so many versions old: at lag 0 the numerics of two engines, beyond it staleness.",
    label=ATTR_LAG_BUCKET,
    exported="tidegate.learner.mismatch_kl.by_lag",
)
COMPLETION_TOKENS_MEAN = Gauge(
    "completion_tokens_mean",
    "{token}",
    "Mean tokens that the policy chose in a completion of the newest batch.",
    exported="tidegate.learner.completion.tokens",
)
COMPLETION_TOKENS_MAX = Gauge(
    "completion_tokens_max",
    "{token}",
    "Most tokens that the policy chose in a completion of the newest batch.",
    exported="tidegate.learner.completion.tokens.max",
)
TEXT_TOKENS_MEAN = Gauge(
    "text_tokens_mean",
    "{token}",
    "Mean tokens of a text of the newest update: a prompt with one completion.",
    exported=False,
)
UPDATE_TOKENS = Gauge(
    "update_tokens",
    "{token}",
    "Tokens that the newest update computed, each prompt once, padding left out.",
    exported=False,
)
UPDATE_TOKENS_PER_S = Gauge(
    "update_tokens_per_s",
    "{token}/s",
    "Tokens that the newest update computed a second, on all ranks together.",
    exported="tidegate.learner.update.token_rate",
)
MFU = Gauge(
    "mfu",
    "1",
    "Share of the GPUs' peak that the newest update reached (model FLOP utilisation), as `tidegate plan --mfu` takes"
    " it.",
    exported="tidegate.learner.mfu",
)
POLICY_LOSS = Gauge("policy_loss", "", "Policy term of the loss.", exported="tidegate.learner.loss.policy")
VALUE_LOSS = Gauge("value_loss", "", "Value term of the loss.", exported="tidegate.learner.loss.value")
VALUE_MEAN = Gauge(
    "value_mean",
    "",
    "Mean value estimate of the newest batch.",
    exported="tidegate.learner.value_mean",
)
TD_ERROR_MEAN = Gauge(
    "td_error_mean",
    "",
    "Mean size of the TD errors of the newest batch, in the network's scale.",
    exported="tidegate.learner.td_error",
)
VALUE_CLIPPED_FRACTION = Gauge(
    "value_clipped_fraction",
    "1",
    "Share of the value errors that were clipped.",
    exported="tidegate.learner.value_clipped_fraction",
)
TRUNCATED_FRACTION = Gauge(
    "truncated_fraction",
    "1",
    "Share of the importance ratios that were truncated.",
    exported="tidegate.learner.truncated_fraction",
)
RATIO_MEAN = Gauge(
    "ratio_mean",
    "1",
    "Mean importance ratio of the newest batch.",
    exported="tidegate.learner.ratio_mean",
)
GRADIENT_STEPS = Gauge(
    "gradient_steps",
    "{step}",
    "Gradient steps of the newest update; a target KL ends them early.",
    exported=False,
)
UPDATES = Gauge("updates", "{update}", "Updates of the newest version, where it has several.", exported=False)
STEP_KL = Gauge(
    "kl",
    "",
    "Divergence of the policy from the one that its clip is around, in nats.",
    exported="tidegate.learner.step_kl",
)
REWARD_MEAN = Gauge(
    "reward_mean", "", "Mean reward that the update used.", exported="tidegate.learner.reward_used"
)
LAST_SEND_S = Gauge(
    "send_s", "s", "Time of the newest update spent sending to the other ranks.", exported=False
)
LAST_REDUCE_S = Gauge("reduce_s", "s", "Time of the newest update spent reducing gradients.", exported=False)
LAST_COMPUTE_S = Gauge(
    "compute_s", "s", "Time of the newest update spent computing gradients.", exported=False
)
_DIAGNOSTICS = {
    str(gauge): gauge
    for gauge in (
        *(LOSS, ESS, CLIPPED_FRACTION, GRAD_NORM, LEARNING_RATE, ENTROPY, MISMATCH_KL, REFERENCE_KL),
        *(EXPLAINED_VARIANCE, ZERO_SIGNAL_FRACTION, POLICY_LOSS, VALUE_LOSS, VALUE_MEAN),
        *(VALUE_CLIPPED_FRACTION, TRUNCATED_FRACTION, RATIO_MEAN, REWARD_MEAN, GRADIENT_STEPS, STEP_KL),
        *(UPDATES, TD_ERROR_MEAN, COMPLETION_TOKENS_MEAN, COMPLETION_TOKENS_MAX),
        *(TEXT_TOKENS_MEAN, UPDATE_TOKENS, UPDATE_TOKENS_PER_S, MFU),
        *(LAST_SEND_S, LAST_REDUCE_S, LAST_COMPUTE_S),
    )
}


def diagnostic(name: str) -> Gauge:
    """The statistic for a metric of an objective; one that is not declared here is on the board, not exported."""
    found = _DIAGNOSTICS.get(name)
    if found is not None:
        return found
    lag = MISMATCH_KL_BY_LAG.value_in(name)
    if lag is not None:
        return MISMATCH_KL_BY_LAG.member(lag)
    return Gauge(name, "", "Diagnostic of the objective.", exported=False)
