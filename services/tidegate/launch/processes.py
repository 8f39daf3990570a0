"""How each process of a run folder is started."""

import os
from pathlib import Path

from tidegate.actor.engines.registry import find_engine, is_own_engine
from tidegate.actor.gateway.config import HOST_VARIABLE, OPERATOR_KEY_VARIABLE
from tidegate.core.errors import ConfigError
from tidegate.environment.verifiers.settings import JudgeSettings
from tidegate.launch.cluster import PASSWORD_VARIABLE, USER_VARIABLE
from tidegate.launch.cores import cores_variable
from tidegate.launch.fork_server import kinds
from tidegate.launch.fork_server.preloading import THREAD_VARIABLES, is_supported
from tidegate.launch.programs import ProcessSpec
from tidegate.launch.restarts import HEALTHY_AFTER_S
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.services import SERVICES
from tidegate.runtime.python_program import python_program
from tidegate.wire.permissions import user_of

# Between asking a service to drain and killing it: its own timeout and what follows it in its lifecycle.
STOP_GRACE_S = 5.0


def log_of(folder: Path, name: str) -> Path:
    """The log of a process."""
    return folder / "logs" / f"{name}.log"


def service_process(
    plan: RunPlan, folder: Path, service: str, *, index: int, instance: str, password: str
) -> ProcessSpec:
    """One instance of a service: forked where that is possible, else ``tidegate serve`` as a program.

    ``password``: of its user at the broker, which no other service gets.
    """
    arguments = [service, "--run-dir", str(folder.resolve()), "--index", str(index)]
    return ProcessSpec(
        name=instance,
        command=python_program("tidegate.cli.main", "serve", *arguments),
        log=log_of(folder, instance),
        environment={
            **_thread_variables(),
            **cores_variable(plan.file.cores, service),
            USER_VARIABLE: user_of(service),
            PASSWORD_VARIABLE: password,
        },
        inherits=named_variables(plan, service),
        fork_server=_fork_server_of(plan, service),
        serve=arguments,
        modules=[
            f"{SERVICES[service].package}.main",
            *_network_modules(plan, service),
            *_engine_modules(plan, service),
        ],
        replica_of=service,
        healthy_after_s=HEALTHY_AFTER_S + _noticed_late_s(plan, service),
    )


def named_variables(plan: RunPlan, service: str) -> tuple[str, ...]:
    """The environment variables that the run file names for a service."""
    config = plan.services[service]
    found = plan.file.pass_env
    if service == "environment":
        found += tuple(
            verifier.api_key_env
            for verifier in config.verifiers.values()
            if isinstance(verifier, JudgeSettings) and verifier.api_key_env
        )
    if service in ("task_queue", "trajectory_store") and plan.file.postgres is not None:
        found += (plan.file.postgres.uri_env,)
    if service == "actor" and config.gateway is not None:
        found += (OPERATOR_KEY_VARIABLE, HOST_VARIABLE, *config.gateway.pass_env)
    return found


def fork_servers(plan: RunPlan) -> list[str]:
    """The fork servers that start services of this run."""
    used = {_fork_server_of(plan, service) for service in SERVICES}
    return [name for name in kinds.PRELOADED if name in used]


def fork_server_process(plan: RunPlan, folder: Path, name: str) -> ProcessSpec:
    """A fork server, as the program that replaces the one which the supervisor forked when it began."""
    return ProcessSpec(
        name=name,
        command=python_program("tidegate.launch.fork_server", name),
        log=log_of(folder, name),
        environment=_thread_variables(),
        inherits=plan.file.pass_env,
        essential=False,
    )


def _fork_server_of(plan: RunPlan, service: str) -> str:
    if not is_supported():
        return ""
    torch = service == kinds.LEARNER or (service == "actor" and plan.file.workload.kind == "text")
    return kinds.TORCH if torch else kinds.LIGHT


def _noticed_late_s(plan: RunPlan, service: str) -> float:
    """How long an actor lives after its environment hung; no part of a healthy life."""
    workload = plan.file.workload
    return workload.step_timeout_s if service == "actor" and workload.kind == "segments" else 0.0


def _network_modules(plan: RunPlan, service: str) -> list[str]:
    """Of a network whose library takes as long to load as torch: 7 CPU-seconds and 120 MB on a busy machine."""
    if plan.file.policy.kind != "transformers" or _fork_server_of(plan, service) != kinds.TORCH:
        return []
    return ["tidegate.models.transformers_lm"]


def _engine_modules(plan: RunPlan, service: str) -> list[str]:
    """What an actor imports when it opens its engine; an engine that does not fit is the actor's to report."""
    if service != "actor":
        return []
    workload = plan.file.workload
    try:
        engine = find_engine(plan.services["actor"].engine, workload=workload, policy=plan.file.policy)
    except ConfigError:
        return []
    # A fork server runs no code of a user's: one that fails there would fail for all services.
    own = is_own_engine(plan.services["actor"].engine)
    modules = [] if own else [engine.target.partition(":")[0]]
    return [*modules, "gymnasium"] if workload.kind == "segments" else modules


def _thread_variables() -> dict[str, str]:
    return {name: os.environ.get(name, "1") for name in THREAD_VARIABLES}
