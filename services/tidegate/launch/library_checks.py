"""Environments of other libraries: combinations of settings that cannot work, refused before the start."""

from typing import Any

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.names import is_openenv, is_verifiers, openenv_settings
from tidegate.environment.tasks.registry import TASKS
from tidegate.launch.run_plan import RunFile


def check_libraries(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """The first combination that cannot work, or None."""
    workload = file.workload
    if workload.kind != "text":
        return None
    if workload.envs:
        return _check_several(file, services)
    if workload.env in TASKS and workload.env_kwargs:
        return ConfigError(
            f"workload.env_kwargs is set with workload.env {workload.env}",
            why="the tasks of this package take no arguments",
            fix="remove workload.env_kwargs",
        )
    if is_openenv(workload.env):
        return _check_openenv(file, services)
    if is_verifiers(workload.env):
        return _check_verifiers(file, services)
    gateway = services["actor"].gateway
    if gateway is not None and gateway.has_library_worker:
        return ConfigError(
            "actor.gateway.workers is set without a command",
            why=f"workload.env {workload.env} is of no library that has a worker of its own",
            fix="set actor.gateway.command to the program of your worker",
        )
    return None


def _check_several(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    """The first that could not run alone, with its name; or an agent that may not know one of them."""
    parts, played = file.workload.by_name(), file.workload.of_verifiers()
    other = next((name for name in parts if name not in played), None)
    actor = services["actor"]
    if played and other is not None and actor.gateway is not None and not actor.gateway.has_library_worker:
        return ConfigError(
            f"workload.envs has {other} beside {min(played)} of verifiers, and an agent of your own",
            why="the actor plays the others itself where the library's worker plays its own",
            fix="set actor.gateway.workers and remove actor.gateway.command",
        )
    # Beside environments of verifiers the others are run as without a gateway.
    without = services | {"actor": msgspec.structs.replace(actor, gateway=None)} if played else services
    for name, part in parts.items():
        alone = msgspec.structs.replace(file, workload=part)
        if problem := check_libraries(alone, services if name in played else without):
            return ConfigError(f"workload.envs, {name}: {problem.what}", why=problem.why, fix=problem.fix)
    return None


def _check_openenv(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    try:
        settings = openenv_settings(file.workload)
    except ConfigError as error:
        return error
    if services["actor"].gateway is not None:
        return ConfigError(
            "actor.gateway is set with an OpenEnv server as workload.env",
            why="its episodes are played by the actor itself, and a gateway's by an agent",
            fix="remove actor.gateway",
        )
    if file.workload.turns_max < 2:
        return ConfigError(
            "workload.turns_max is 1 with an OpenEnv server as workload.env",
            why="a turn is a step of its environment",
            fix="set workload.turns_max to the steps of an episode, and to 2 where it has one",
        )
    deadline_s = services["environment"].score_deadline_s
    if deadline_s <= settings.deadline_s:
        return ConfigError(
            f"environment.score_deadline_s {deadline_s:g} is not above workload.env_kwargs.deadline_s"
            f" {settings.deadline_s:g}",
            why="a process that waits for the server is killed at the first one, and its other episodes with it",
            fix=f"set environment.score_deadline_s to {2 * settings.deadline_s:g}",
        )
    return None


def _check_verifiers(file: RunFile, services: dict[str, Any]) -> ConfigError | None:
    gateway = services["actor"].gateway
    if gateway is None:
        return ConfigError(
            f"workload.env {file.workload.env} needs actor.gateway",
            why="an environment of verifiers calls its model through the OpenAI API",
            fix="set actor.gateway: {workers: 1, sampling: override, unknown_fields: ignore}",
        )
    if gateway.reward != "posted":
        return ConfigError(
            f"actor.gateway.reward is {gateway.reward} with workload.env {file.workload.env}",
            why="an environment of verifiers scores its own episodes",
            fix="remove actor.gateway.reward",
        )
    return None
