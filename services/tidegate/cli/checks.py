"""Settings that are fine one by one and cannot work together, refused before anything starts, with the reason."""

from typing import TYPE_CHECKING, Any

from tidegate.core.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.cli.run_file import RunFile

POLICY_OF_WORKLOAD = {"segments": "mlp_actor_critic", "text": "char_lm"}


def check_plan(file: "RunFile", services: dict[str, Any]) -> ConfigError | None:
    """The first combination that cannot work, or None."""
    workload, policy = file.workload, file.policy
    group = workload.num_samples
    wanted = POLICY_OF_WORKLOAD[workload.kind]
    if policy.kind != wanted:
        return ConfigError(
            f"policy.kind {policy.kind} cannot act in workload.kind {workload.kind}",
            fix=f"set policy.kind to {wanted}",
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
            why="a group is trained whole, so the learner would wait for ever for the rest of its batch",
            fix=f"set batch_size to {lower} or {(file.batch_size // group + 1) * group}",
        )
    if file.max_running < group:
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
    return _check_services(file, services)


def _check_services(file: "RunFile", services: dict[str, Any]) -> ConfigError | None:
    return None
