"""What judges answers outside of any run: task and verifiers are called as in a run, in the same child processes."""

import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import structlog

from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.own_code.pool import OwnCodeSettings
from tidegate.environment.own_code.tasks import OwnTasks
from tidegate.environment.parts import bounds_of, close_verifiers, open_verifiers
from tidegate.environment.run_environments import RunEnvironments
from tidegate.environment.sandbox.port import IsolatedSandbox
from tidegate.environment.sandbox.registry import open_sandbox
from tidegate.environment.scoring import Scorer
from tidegate.environment.state import ScoreCache
from tidegate.environment.verifiers.port import Verifier
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import WorkloadConfig


class OpenedScoring(msgspec.Struct, frozen=True, eq=False):
    """See ``open_scoring``. ``scorer`` judges by tasks; ``bounds`` are those of children of own code."""

    envs: RunEnvironments
    bounds: OwnCodeSettings
    sandbox: IsolatedSandbox
    verifiers: dict[str, Verifier]
    scorer: Scorer


@asynccontextmanager
async def open_scoring(
    workload: WorkloadConfig, config: EnvironmentConfig, *, folder: str, num_processes: int, attempts: int = 1
) -> AsyncGenerator[OpenedScoring]:
    """Open tasks and verifiers of a text workload. ``folder``: of the run file.

    ``num_processes``: children of own code, each of which judges one answer at a time. ``attempts``: of a task that
    fails for the moment.

    Raises:
        ConfigError: something cannot be loaded or opened.
    """
    bounds = msgspec.structs.replace(bounds_of(config), num_processes=num_processes)
    envs = RunEnvironments(workload, folder=folder)
    async with AsyncExitStack() as stack:
        tasks = OwnTasks(bounds, own=envs.own, env_of=envs.env_of)
        stack.push_async_callback(tasks.close)
        sandbox = open_sandbox(
            config.isolation, config.sandbox, max_runs=1, environ=os.environ, log=structlog.get_logger()
        )
        stack.callback(sandbox.close)
        verifiers = await open_verifiers(config, sandbox, folder=folder)
        stack.push_async_callback(close_verifiers, verifiers)
        scorer = Scorer(
            tasks.task_of,
            ScoreCache(num_max=config.cache_entries),
            SystemClock(),
            deadline_s=config.score_deadline_s,
            attempts=attempts,
            own=tasks,
        )
        yield OpenedScoring(envs, bounds, sandbox, verifiers, scorer)
