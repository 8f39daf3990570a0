"""Statistics of actors."""

from tidegate.catalogue.kinds import Counter, Family, Gauge, Text
from tidegate.catalogue.telemetry import (
    ATTR_BIN,
    ATTR_CAUSE,
    ATTR_KIND,
    ATTR_LENGTH,
    ATTR_OPERATION,
    ATTR_OUTCOME,
    ATTR_STAGE,
    ATTR_STATE,
    ATTR_STREAM,
    METRIC_PROGRESS_ERRORS,
    METRIC_QUARANTINED,
    METRIC_REDELIVERED,
    METRIC_RETRIES,
    METRIC_ROLLOUT_RESUMPTIONS,
    METRIC_ROLLOUT_TOKENS,
    METRIC_SESSIONS,
    METRIC_STAGE_ERRORS,
    METRIC_TASKS_RETURNED,
    METRIC_WORKER_TIME,
    SPAN_GENERATE,
)

# -- what an actor makes -----------------------------------------------------------------------------------------------

TRAJECTORIES = Counter(
    "trajectories_total",
    "{trajectory}",
    "Trajectories finished and acknowledged by the broker.",
    exported="tidegate.trajectory.generated",
)
STEPS = Counter(
    "steps_total", "{step}", "Environment steps or tokens generated.", exported="tidegate.actor.steps"
)
TASKS_FAILED = Counter(
    "tasks_failed_total",
    "{error}",
    "Tasks whose rollouts failed.",
    exported=METRIC_STAGE_ERRORS.of({ATTR_STAGE: SPAN_GENERATE}),
    from_zero=True,
)
TASK_REFUSAL = Text(
    "task_refusal", "Why the actor refused its newest task for good; empty once it runs one.", exported=False
)
TASKS_RELEASED = Counter(
    "tasks_released_total",
    "{task}",
    "Tasks released for redelivery while draining.",
    exported=METRIC_TASKS_RETURNED.of({ATTR_CAUSE: "drained"}),
)
TASKS_REDELIVERED = Counter(
    "tasks_redelivered_total",
    "{message}",
    "Deliveries of tasks after the first.",
    exported=METRIC_REDELIVERED.of({ATTR_STREAM: "TASKS"}),
    from_zero=True,
)
TASKS_DUPLICATE = Counter(
    "tasks_duplicate_total",
    "{message}",
    "Redelivered tasks that this actor was already running.",
    exported=False,
)
QUARANTINED = Counter(
    "quarantined_total",
    "{message}",
    "Invalid messages moved to the QUARANTINE stream.",
    exported=METRIC_QUARANTINED.of({}),
    from_zero=True,
)
EPISODES_FAILED = Counter(
    "episodes_failed_total",
    "{episode}",
    "Episodes of language models that failed.",
    exported="tidegate.actor.episodes_failed",
)
BUSY_TASKS = Gauge("busy_tasks", "{task}", "Tasks in progress.", exported="tidegate.actor.busy_tasks")
WORK_INVESTED_S = Gauge(
    "work_invested_s", "s", "Time spent on the tasks in progress; ranks pods for deletion.", exported=False
)

# -- environments of segments ------------------------------------------------------------------------------------------

ENVIRONMENT_FAULTS = Family(
    Counter,
    "environment_faults.*_total",
    "{fault}",
    "Calls into environments that failed, by kind: raised, not_finite, hung.",
    label=ATTR_KIND,
    exported="tidegate.actor.environment_faults",
)
ENVIRONMENT_CALL_S = Gauge(
    "environment_call_s",
    "s",
    "Time for which the environments have not returned from a call; 0 while they do.",
    exported="tidegate.actor.environment_call.time",
)
ENVIRONMENT_CALL = Text(
    "environment_call",
    "The call into the environments that does not return; empty while all do.",
    exported=False,
)
ENVIRONMENT_FAULT = Text(
    "environment_fault",
    "The newest fault of an environment: which one, in which copy and call.",
    exported=False,
)

# -- actions of the inference service ----------------------------------------------------------------------------------

INFERENCE_WAIT_S = Counter(
    "inference_wait_s_total",
    "s",
    "Time in which the environments of an actor waited for actions of the inference service.",
    exported="tidegate.actor.inference.wait",
)
INFERENCE_LOSSES = Counter(
    "inference_losses_total",
    "{loss}",
    "Streams to the inference service that broke or could not be opened.",
    exported="tidegate.actor.inference.losses",
)
INFERENCE_GIVEN_UP = Counter(
    "inference_given_up_total",
    "{segment}",
    "Segments released because the inference service did not answer.",
    exported="tidegate.actor.inference.given_up",
)

# -- groups that end without a trajectory ------------------------------------------------------------------------------

CUT = Counter(
    "cut_total",
    "{trajectory}",
    "Trajectories cut because they would exceed the staleness budget.",
    exported="tidegate.rollout.cut",
)
CUT_S = Counter(
    "cut_s_total", "s", "Generation time of rollouts that were cut.", exported="tidegate.rollout.cut.time"
)
CUT_IN_BIN = Family(
    Counter,
    "cut_bin.*_total",
    "{trajectory}",
    "Trajectories cut, by curriculum bin.",
    label=ATTR_BIN,
    exported=False,
)
CUT_AT_LENGTH = Family(
    Counter,
    "cut_length.*_total",
    "{trajectory}",
    "Trajectories cut, by length when they were cut.",
    label=ATTR_LENGTH,
    exported=False,
)
EARLY_STOPPED = Counter(
    "early_stopped_total",
    "{trajectory}",
    "Trajectories of groups stopped early because their first samples were rewarded alike.",
    exported="tidegate.early_stop.trajectories",
)
EARLY_STOPPED_IN_BIN = Family(
    Counter,
    "early_stopped_bin.*_total",
    "{trajectory}",
    "Trajectories of groups stopped early, by curriculum bin.",
    label=ATTR_BIN,
    exported=False,
)
EARLY_STOPPED_GROUPS = Counter(
    "early_stopped_groups_total", "{group}", "Groups stopped early.", exported=False
)
UNSAMPLED = Counter(
    "unsampled_total",
    "{trajectory}",
    "Samples that early stops made unnecessary.",
    exported="tidegate.early_stop.saved",
)
EARLY_STOP_CHECKS_FAILED = Counter(
    "early_stop_checks_failed_total",
    "{error}",
    "Early-stop checks that no environment worker answered.",
    exported="tidegate.early_stop.errors",
)
FAILED = Counter(
    "failed_total", "{trajectory}", "Trajectories dropped because their task failed.", exported=False
)
FAILED_IN_BIN = Family(
    Counter,
    "failed_bin.*_total",
    "{trajectory}",
    "Trajectories dropped because their task failed, by curriculum bin.",
    label=ATTR_BIN,
    exported=False,
)

# -- partial rollouts --------------------------------------------------------------------------------------------------

TOKENS_WRITTEN = Counter(
    "tokens_written_total",
    "{token}",
    "Tokens generated in partial rollouts.",
    exported=METRIC_ROLLOUT_TOKENS.of({ATTR_KIND: "written"}),
)
TOKENS_RESUMED = Counter(
    "tokens_resumed_total",
    "{token}",
    "Tokens resumed from another actor's progress.",
    exported=METRIC_ROLLOUT_TOKENS.of({ATTR_KIND: "resumed"}),
)
TOKENS_LOST = Counter(
    "tokens_lost_total",
    "{token}",
    "Tokens of another actor's progress that could not be resumed.",
    exported=METRIC_ROLLOUT_TOKENS.of({ATTR_KIND: "lost"}),
    from_zero=True,
)
TOKENS_RELEASED = Counter(
    "tokens_released_total",
    "{token}",
    "Tokens of partial rollouts released to other actors.",
    exported=METRIC_ROLLOUT_TOKENS.of({ATTR_KIND: "released"}),
)
TOKENS_DROPPED = Counter(
    "tokens_dropped_total",
    "{token}",
    "Tokens of partial rollouts that were dropped.",
    exported=METRIC_ROLLOUT_TOKENS.of({ATTR_KIND: "dropped"}),
)
ROLLOUTS_RESUMED = Counter(
    "rollouts_resumed_total",
    "{task}",
    "Tasks resumed from another actor's progress.",
    exported=METRIC_ROLLOUT_RESUMPTIONS.of({ATTR_KIND: "resumed"}),
)
ROLLOUTS_RESTARTED = Counter(
    "rollouts_restarted_total",
    "{task}",
    "Tasks restarted although another actor had made progress.",
    exported=METRIC_ROLLOUT_RESUMPTIONS.of({ATTR_KIND: "restarted"}),
)
PROGRESS_UNREAD = Counter(
    "progress_unread_total",
    "{task}",
    "Tasks whose checkpointed progress the broker did not return.",
    exported=METRIC_ROLLOUT_RESUMPTIONS.of({ATTR_KIND: "unread"}),
)
PROGRESS_REFUSED = Counter(
    "progress_refused_total",
    "{task}",
    "Tasks whose checkpointed progress was malformed.",
    exported=METRIC_ROLLOUT_RESUMPTIONS.of({ATTR_KIND: "refused"}),
)
PROGRESS_KEPT = Counter(
    "progress_kept_total", "{checkpoint}", "Checkpoints of partial rollouts to the broker.", exported=False
)
PROGRESS_BYTES = Counter(
    "progress_bytes_total",
    "By",
    "Bytes of partial rollouts checkpointed to the broker.",
    exported="tidegate.rollout.progress.size",
)
PROGRESS_NOT_KEPT = Counter(
    "progress_not_kept_total",
    "{error}",
    "Checkpoints of partial rollouts that the broker refused.",
    exported=METRIC_PROGRESS_ERRORS.of({ATTR_OPERATION: "write"}),
)
PROGRESS_NOT_CLEARED = Counter(
    "progress_not_cleared_total",
    "{error}",
    "Checkpoints of finished rollouts that could not be cleared.",
    exported=METRIC_PROGRESS_ERRORS.of({ATTR_OPERATION: "clear"}),
)

# -- the policy --------------------------------------------------------------------------------------------------------

SERVING_STEP = Gauge(
    "serving_step",
    "{version}",
    "Policy version that the actor serves, as the step of its lineage.",
    exported="tidegate.actor.policy_version",
)
SERVING_VERSION = Text("serving_version", "Policy version that the actor serves.", exported=False)
WEIGHT_PULL_MS = Gauge("weight_pull_ms", "ms", "Duration of the newest pull of weights.", exported=False)
POLICIES_REFUSED = Counter(
    "policies_refused_total",
    "{version}",
    "Versions that the actor could not load.",
    exported="tidegate.actor.policies_refused",
    from_zero=True,
)
PULL_RETRIES = Counter(
    "pull_retries_total",
    "{retry}",
    "Pulls of weights repeated after a transient failure.",
    exported=METRIC_RETRIES.of({ATTR_OPERATION: "pull_weights"}),
    from_zero=True,
)
SWAPS = Counter(
    "swaps_total", "{swap}", "Changes of the served version.", exported="tidegate.actor.weight_swaps"
)
SWAP_MS = Counter(
    "swap_ms_total",
    "ms",
    "Time spent changing the served version.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "swap"}),
)

# -- where its time goes -----------------------------------------------------------------------------------------------

BUSY_S = Counter(
    "busy_s_total", "s", "Time spent on rollouts.", exported=METRIC_WORKER_TIME.of({ATTR_STATE: "busy"})
)
WAIT_TASK_S = Counter(
    "wait_task_s_total",
    "s",
    "Time spent waiting for a task.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_task"}),
)
WAIT_POLICY_S = Counter(
    "wait_policy_s_total",
    "s",
    "Time spent waiting for a policy version that the waiting tasks accept.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_policy"}),
)
WAIT_BROKER_S = Counter(
    "wait_broker_s_total",
    "s",
    "Time spent without a task while the broker was unreachable.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_broker"}),
)
WAIT_PUBLISH_S = Counter(
    "wait_publish_s_total",
    "s",
    "Time spent waiting for the broker to accept rollouts.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_publish"}),
)
WAIT_SCORE_S = Counter(
    "wait_score_s_total",
    "s",
    "Time spent waiting for rewards of early-stop checks.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_score"}),
)
WAIT_SESSION_S = Counter(
    "wait_session_s_total",
    "s",
    "Time spent waiting for answers of tool sessions.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_session"}),
)
WAIT_LATENCY_S = Counter(
    "wait_latency_s_total",
    "s",
    "Time spent in the configured latency of the environment; part of busy.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "wait_latency"}),
)
EVALUATION_S = Counter(
    "evaluation_s_total",
    "s",
    "Time spent on evaluations.",
    exported=METRIC_WORKER_TIME.of({ATTR_STATE: "evaluation"}),
)

# -- retries -----------------------------------------------------------------------------------------------------------

ENGINE_RETRIES = Counter(
    "engine_retries_total",
    "{retry}",
    "Calls of the engine repeated after a transient failure.",
    exported=METRIC_RETRIES.of({ATTR_OPERATION: "generate"}),
)

# -- tool sessions -----------------------------------------------------------------------------------------------------

SESSIONS_OPENED = Counter(
    "sessions_opened_total",
    "{session}",
    "Tool sessions opened at environment workers.",
    exported=METRIC_SESSIONS.of({ATTR_OUTCOME: "opened"}),
)
SESSIONS_LOST = Counter(
    "sessions_lost_total",
    "{session}",
    "Tool sessions lost with their environment worker, and opened again at another.",
    exported=METRIC_SESSIONS.of({ATTR_OUTCOME: "lost"}),
)
SESSION_RETRIES = Counter(
    "session_retries_total",
    "{retry}",
    "Attempts to open a tool session repeated after a transient failure.",
    exported=METRIC_RETRIES.of({ATTR_OPERATION: "open_session"}),
)
SESSION_BACKPRESSURE = Counter(
    "session_backpressure_total",
    "{session}",
    "Attempts to open a tool session that found the worker full; the worker exports them.",
    exported=False,
)

# -- evaluations -------------------------------------------------------------------------------------------------------

EVALUATIONS = Counter(
    "evaluations_total",
    "{evaluation}",
    "Evaluations completed: of held-out problems, or of whole episodes.",
    exported="tidegate.evaluation.completed",
)
EVALUATIONS_FAILED = Counter(
    "evaluations_failed_total",
    "{evaluation}",
    "Evaluations that failed; a version without one is skipped.",
    exported="tidegate.evaluation.failed",
)
EVALUATION_SOLVED_SHARE = Gauge(
    "evaluation_solved_share",
    "1",
    "Share of the held-out problems solved in this actor's newest evaluation.",
    exported="tidegate.evaluation.solved_share",
)
EVALUATION_MEAN_REWARD = Gauge(
    "evaluation_mean_reward",
    "",
    "Mean reward of this actor's newest evaluation.",
    exported="tidegate.evaluation.mean_reward",
)
EVALUATION_VERSION = Text("evaluation_version", "Version of this actor's newest evaluation.", exported=False)
EVALUATION_RETURN = Gauge(
    "evaluation_return",
    "",
    "Mean return of the episodes that this actor's newest evaluation played greedily.",
    exported="tidegate.evaluation.return",
)
EVALUATION_RETURN_STD = Gauge(
    "evaluation_return_std",
    "",
    "Standard deviation of the returns of this actor's newest evaluation.",
    exported="tidegate.evaluation.return_std",
)
EVALUATION_RETURN_MIN = Gauge(
    "evaluation_return_min",
    "",
    "Lowest return of this actor's newest evaluation.",
    exported="tidegate.evaluation.return_min",
)
EVALUATION_RETURN_MAX = Gauge(
    "evaluation_return_max",
    "",
    "Highest return of this actor's newest evaluation.",
    exported="tidegate.evaluation.return_max",
)
EVALUATION_EPISODES = Gauge(
    "evaluation_episodes",
    "{episode}",
    "Episodes counted in this actor's newest evaluation; those in which the environment failed are not.",
    exported="tidegate.evaluation.episodes",
)
EVALUATION_PROBLEM = Text(
    "evaluation_problem",
    "Why this actor's newest evaluation failed; empty after one that did not.",
    exported=False,
)
