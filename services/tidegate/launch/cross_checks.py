"""Combinations of valid settings that cannot work together, refused with a reason before the start."""

from typing import Any

from tidegate.actor.engines.registry import find_engine, own_engine_of
from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.core.errors import ConfigError
from tidegate.core.targets import RunTarget
from tidegate.launch.algorithm_checks import check_algorithm
from tidegate.launch.cores import check_cores
from tidegate.launch.library_checks import check_libraries
from tidegate.launch.q_learning_checks import check_q_learning
from tidegate.launch.run_plan import RunFile
from tidegate.learner.algorithm import AlgorithmName, check_engine, check_replay, find_algorithm
from tidegate.learner.warmup_settings import WarmupSettings
from tidegate.runtime.chat_config import ChatConfig
from tidegate.runtime.loading import load
from tidegate.runtime.own_code.references import is_reference
from tidegate.runtime.own_policy import own_policy_of

# Of trajectories that are trained once; what replay keeps may be older.
LAG_MAX = 1024
RETURN_STATISTICS = (learner_stats.MEAN_RETURN, learner_stats.EPISODES)
# By the kind of workload whose evaluations report them.
EVALUATION_STATISTICS = {
    "text": (
        "solved_share",
        actor_stats.EVALUATION_SOLVED_SHARE,
        actor_stats.EVALUATION_MEAN_REWARD,
    ),
    "segments": (
        actor_stats.EVALUATION_RETURN,
        actor_stats.EVALUATION_RETURN_STD,
        actor_stats.EVALUATION_RETURN_MIN,
        actor_stats.EVALUATION_RETURN_MAX,
        actor_stats.EVALUATION_EPISODES,
    ),
}


def check_plan(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """The first combination that cannot work, or None."""
    workload, policy = file.workload, file.policy
    group = workload.num_samples
    if problem := _check_registered(file, services):
        return problem
    try:
        engine = find_engine(services["actor"].engine, workload=workload, policy=policy)
        algorithm, _ = find_algorithm(services["learner"].algorithm, policy_kind=policy.family)
    except ConfigError as error:
        return error
    unit = services["trajectory_store"].replay.unit
    if problem := check_engine(algorithm, engine=services["actor"].engine) or check_replay(
        algorithm, unit=unit
    ):
        return problem
    if services["actor"].gateway is not None and engine.port != "tokens":
        return ConfigError(
            "actor.gateway is set and the run's engine writes no tokens one by one",
            why="agents ask through the OpenAI API for completions of a language model",
            fix="remove actor.gateway, or set actor.engine to torch, vllm or sglang, which take workload.kind text",
        )
    if problem := check_algorithm(algorithm, file, services):
        return problem
    if policy.kind == "transformers" and not policy.path:
        return ConfigError(
            "policy.kind is transformers and policy.path names no model",
            fix="set policy.path to a folder with a pretrained model, or to smollm2",
        )
    if services["learner"].language_model.reads_values and workload.kind == "text" and not policy.value_head:
        return ConfigError(
            f"learner.language_model.objective {services['learner'].language_model.objective} needs a critic",
            why="policy.value_head is false",
            fix="set policy.value_head to true, or take an objective that compares within groups, such as tis",
        )
    if workload.kind == "segments" and group != 1:
        return ConfigError(
            f"workload.num_samples is {group} with workload.kind segments",
            why="a segment is one trajectory; only prompts have groups of samples",
            fix="remove workload.num_samples",
        )
    if file.batch_size % group:
        lower = max(group, file.batch_size // group * group)
        return ConfigError(
            f"batch_size {file.batch_size} is no multiple of workload.num_samples {group}",
            why="a group is trained whole, so the learner would wait forever for the rest of its batch",
            fix=f"set batch_size to {lower} or {(file.batch_size // group + 1) * group}",
        )
    if 0 < file.max_running < group:
        return ConfigError(
            f"max_running {file.max_running} is below workload.num_samples {group}",
            why="tasks are admitted in whole groups, so none would ever be admitted",
            fix=f"set max_running to {group} or more",
        )
    if workload.kind == "text" and workload.sampler.max_new_tokens >= policy.context_length:
        return ConfigError(
            f"workload.sampler.max_new_tokens {workload.sampler.max_new_tokens} leaves no room for a prompt "
            f"in policy.context_length {policy.context_length}",
            fix="raise policy.context_length or lower workload.sampler.max_new_tokens",
        )
    if policy.kind == "char_lm" and policy.d_model % policy.num_heads:
        return ConfigError(
            f"policy.d_model {policy.d_model} is no multiple of policy.num_heads {policy.num_heads}",
            why="each attention head takes an equal share of the model's width",
            fix=f"set policy.d_model to {policy.d_model // policy.num_heads * policy.num_heads or policy.num_heads}",
        )
    return (
        _check_long_tail(file)
        or _check_updates(file, services, algorithm=algorithm)
        or _check_services(file, services)
        or check_libraries(file, services)
        or check_cores(file.cores)
        or _check_policy(file)
        or _check_warmup(file, services)
    )


def _check_registered(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """A policy or an engine that this package does not have, and that no installed one registered."""
    setting = ""
    try:  # of a file or module, the pods of other services have none
        if not is_reference(file.policy.kind):
            setting = "policy.kind"
            own_policy_of(file.policy, folder=file.files_dir)
        if not is_reference(services["actor"].engine):
            setting = "actor.engine"
            own_engine_of(services["actor"].engine, folder=file.files_dir)
    except ConfigError as error:
        return ConfigError(f"{setting}: {error.what}", why=error.why, fix=error.fix)
    return None


def _check_updates(
    file: RunFile, services: dict[str, Any], *, algorithm: AlgorithmName
) -> ConfigError | None:
    """Several updates a version."""
    learner, group = services["learner"], file.workload.num_samples
    updates = learner.updates_per_version
    if file.batch_size % (updates * group):
        return ConfigError(
            f"batch_size {file.batch_size} is no multiple of learner.updates_per_version {updates}"
            + (f" times workload.num_samples {group}" if group > 1 else ""),
            why="each update of a version trains an equal share of the batch, in whole groups",
            fix=f"set batch_size to {(file.batch_size // (updates * group) + 1) * updates * group}",
        )
    if updates > 1 and algorithm == "actor_critic" and learner.actor_critic.objective == "a2c":
        return ConfigError(
            f"learner.updates_per_version is {updates} with learner.actor_critic.objective a2c",
            why="without a clip only the first update is of the policy that its data came from",
            fix="remove learner.updates_per_version, or set the objective to ppo or vtrace",
        )
    return None


def _check_policy(file: RunFile) -> ConfigError | None:
    """Settings of another kind of policy."""
    policy = file.policy
    if policy.chat != ChatConfig() and policy.kind != "transformers":
        return ConfigError(
            f"policy.chat is set with policy.kind {policy.kind}",
            why="only pretrained models have a chat template",
            fix="remove policy.chat",
        )
    if policy.action_values and not policy.is_own:
        return ConfigError(
            f"policy.action_values is set with policy.kind {policy.kind}",
            why="it says what layers of your own make; the kinds of this package say it by their names",
            fix="remove it; q_mlp and q_cnn make the values of actions",
        )
    return None


def _check_warmup(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """Settings of a warm-up that this policy does not have."""
    warmup, kind = services["learner"].warmup, file.policy.kind
    if warmup.demonstrations and not warmup.applies_to(kind):
        return ConfigError(
            f"learner.warmup.demonstrations is set with policy.kind {kind}",
            why="only language models are warmed up on demonstrations",
            fix="remove it",
        )
    if warmup.demonstrations and file.begin_from:
        return ConfigError(
            "learner.warmup.demonstrations is set with begin_from",
            why="the first version is either the other run's policy or a warmed-up one",
            fix="remove one of them",
        )
    for key in ("stop_at_solved", "heldout_samples") if kind == "transformers" else ("patience",):
        if getattr(warmup, key) != getattr(WarmupSettings(), key):
            return ConfigError(
                f"learner.warmup.{key} is set with policy.kind {kind}",
                why="a char_lm stops at a share of solved demonstrations, a pretrained model by its held-out loss",
                fix=f"remove learner.warmup.{key}",
            )
    return None


def _check_long_tail(file: RunFile) -> ConfigError | None:
    tail, workload = file.long_tail, file.workload
    if workload.kind == "segments":
        for key in ("cap_quantile", "early_stop_after", "group_by_length"):
            if getattr(tail, key):
                return ConfigError(
                    f"long_tail.{key} is set with workload.kind segments",
                    why="a segment has a fixed length and no group",
                    fix=f"remove long_tail.{key}",
                )
    if tail.early_stop_after and not 2 <= tail.early_stop_after < workload.num_samples:
        return ConfigError(
            f"long_tail.early_stop_after {tail.early_stop_after} does not fit groups of {workload.num_samples} samples",
            why="one sample shows no difference, and after all of them there is nothing left to stop",
            fix="set it to 2 or more and below workload.num_samples, or to 0",
        )
    return None


def _check_services(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    if services["learner"].precision != "float32" and file.policy.kind not in (
        "cnn",
        "q_cnn",
        "squashed_cnn",
    ):
        return ConfigError(
            f"learner.precision is {services['learner'].precision} with policy.kind {file.policy.kind}",
            why="only convolutions are computed in it",
            fix="remove learner.precision; of a pretrained model, policy.dtype is the precision of frozen weights",
        )
    if services["trajectory_store"].replay.enabled:
        return _check_replay(file, services) or check_q_learning(file, services)
    if file.staleness.max_lag > LAG_MAX:
        return ConfigError(
            f"staleness.max_lag {file.staleness.max_lag} is above {LAG_MAX} without replay",
            why="whole trajectories are trained once, and (max_lag + 1) * batch_size of them may be in flight",
            fix=f"set staleness.max_lag to {LAG_MAX} or less, or trajectory_store.replay.unit to transition",
        )
    resident = services["trajectory_store"].max_resident_trajectories
    if resident < file.batch_size:
        return ConfigError(
            f"trajectory_store.max_resident_trajectories {resident} is below batch_size {file.batch_size}",
            why="the store would be full before a batch is, and the learner would wait forever",
            fix=f"set trajectory_store.max_resident_trajectories to {2 * file.batch_size} or more",
        )
    return None


def _check_replay(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    response = file.response
    for key, is_set in (
        ("hard_sync.every_versions", response.hard_sync.every_versions),
        ("goodput.enabled", response.goodput.enabled),
    ):
        if is_set:
            return ConfigError(
                f"response.{key} is set with trajectory_store.replay.unit {services['trajectory_store'].replay.unit}",
                why="replay keeps what is stale by design, so that nothing is fresh to wait for",
                fix=f"remove response.{key}; staleness.max_lag bounds what is replayed",
            )
    if file.workload.reward.normalise:
        return ConfigError(
            "workload.reward.normalise is set with trajectory_store.replay",
            why="its statistic is of whole segments in the order of their steps, and the learner draws units of them",
            fix="remove it; scale rewards by workload.reward.scale, or learn values of any size by value_rescaling",
        )
    # Only here, because it imports the buffer.
    plan_replay = load("tidegate.trajectory_store.replay.plan:plan_replay")
    try:
        plan_replay(
            services["trajectory_store"],
            file.workload,
            batch_size=file.batch_size,
            max_lag=file.staleness.max_lag,
            seed=file.seed,
        )
    except ConfigError as error:
        return error
    if not file.max_running:
        return ConfigError(
            "max_running is missing in a run with replay",
            why="its staleness budget is of what is drawn again, and says nothing of rollouts in flight",
            fix="set max_running to the trajectories that all actors may run together, such as twice actor.replicas",
        )
    return None


def check_target(target: RunTarget, file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """The first condition that this run can never meet, because no service publishes its statistic; or None."""
    evaluates = bool(services["task_queue"].evaluation_every_versions)
    for condition in target.conditions:
        if condition.name in RETURN_STATISTICS and file.workload.kind == "text":
            return ConfigError(
                f"Target {condition} can never be reached with workload.kind text",
                why="completions have rewards and no episodes",
                fix="use solved_share or mean_reward",
            )
        kinds = [kind for kind, names in EVALUATION_STATISTICS.items() if condition.name in names]
        if kinds and file.workload.kind not in kinds:
            return ConfigError(
                f"Target {condition} can never be reached with workload.kind {file.workload.kind}",
                why="segments are evaluated on whole episodes and text on held-out problems",
                fix=f"use {'evaluation_return' if file.workload.kind == 'segments' else 'solved_share'}",
            )
        if kinds and not evaluates:
            return ConfigError(
                f"Target {condition} can never be reached without evaluations",
                why="task_queue.evaluation_every_versions is 0",
                fix="set task_queue.evaluation_every_versions to 10, for example",
            )
    return None
