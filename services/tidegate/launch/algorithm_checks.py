"""What single algorithms cannot train, and settings that only other algorithms read."""

from typing import Any

from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.core.errors import ConfigError
from tidegate.launch.run_plan import RunFile
from tidegate.learner.algorithm import AlgorithmName, check_memory

# Of ``actor_critic``, what actors of gradients read of their section, and what the learner reads of its own.
OBJECTIVE_SETTINGS = (
    "objective",
    "discount",
    "lambda_",
    "normalise_advantages",
    "entropy_weight",
    "entropy_weight_final",
    "entropy_anneal_updates",
    "value_weight",
    "value_scale",
)
OPTIMISER_SETTINGS = (
    "learning_rate",
    "value_learning_rate",
    "anneal_updates",
    "learning_rate_final_share",
    "adam_epsilon",
    "max_grad_norm",
)


def check_algorithm(algorithm: AlgorithmName, file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """The first setting that does not fit the algorithm of the run, or None."""
    policy = file.policy
    if algorithm == "applied_gradients" and (problem := _check_applied_gradients(file, services)):
        return problem
    if algorithm == "sac" and policy.is_own and not policy.squash_actions:
        return ConfigError(
            f"learner.algorithm sac trains policy.kind {policy.kind} only with policy.squash_actions",
            why="its actions are bounded by tanh, and layers of your own act without bounds by default",
            fix="set policy.squash_actions to true",
        )
    return check_memory(algorithm, memory=policy.memory, policy_kind=policy.kind)


def _check_applied_gradients(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """Statistics that A3C cannot keep, and a setting in the section of the service that does not read it."""
    if file.policy.normalise_observations or file.workload.reward.normalise:
        return ConfigError(
            "learner.algorithm applied_gradients cannot normalise observations or rewards",
            why="running statistics are updated from segments, and its learner receives gradients alone",
            fix="remove policy.normalise_observations and workload.reward.normalise; scale by policy.input_scale",
        )
    default = ActorCriticSettings()
    for names, section, reader in (
        (OBJECTIVE_SETTINGS, "learner", "actor"),
        (OPTIMISER_SETTINGS, "actor", "learner"),
    ):
        written, read = services[section].actor_critic, services[reader].actor_critic
        for name in names:
            if getattr(written, name) in (getattr(default, name), getattr(read, name)):
                continue
            key = f"actor_critic.{name.rstrip('_')}"
            return ConfigError(
                f"{section}.{key} is {getattr(written, name)} with learner.algorithm applied_gradients",
                why="actors compute the gradients by actor.actor_critic, and the learner applies them by its own",
                fix=f"set {reader}.{key} instead",
            )
    updates = services["learner"].updates_per_version
    if updates > 1 and services["actor"].actor_critic.entropy_anneal_updates:
        return ConfigError(
            f"actor.actor_critic.entropy_anneal_updates is set with learner.updates_per_version {updates}",
            why=f"actors know versions and not updates: the weight would change {updates} times later",
            fix="remove one of them",
        )
    return None
