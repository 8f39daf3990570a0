"""Assembly of the environment service."""

import os
from functools import partial
from pathlib import Path

from tidegate.core.errors import TidegateError
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.describing import Describe, EnvironmentAnswer, describe_in
from tidegate.environment.failures import FailureReports
from tidegate.environment.judgements import VerifierFailed
from tidegate.environment.loops import ScoreLoop, SweepLoop
from tidegate.environment.opened_sessions import session_table
from tidegate.environment.own_code.episodes import OwnEpisodes
from tidegate.environment.own_code.tasks import OwnTasks
from tidegate.environment.parts import bounds_of, close_verifiers, open_verifiers, tools_of
from tidegate.environment.rewards import Rewards
from tidegate.environment.run_environments import RunEnvironments
from tidegate.environment.sandbox.registry import open_sandbox
from tidegate.environment.scoring import Scorer
from tidegate.environment.servicer import EnvironmentServicer
from tidegate.environment.state import TASK, AnsweredProblem, ScoreCache
from tidegate.environment.tasks.port import Problem
from tidegate.runtime.service import Loop, ServiceContext, ServiceParts, ServiceSpec


async def build(context: ServiceContext, config: EnvironmentConfig) -> ServiceParts:
    """Assemble the service and load the verifiers. Without text work it serves sessions and the description.

    Raises:
        ConfigError: a verifier can never score, as it is configured, or there is no such text task.
    """
    data = Path(context.settings.data_dir) / "data"
    return await assemble(context, config, describe=describe_in(data))


async def assemble(context: ServiceContext, config: EnvironmentConfig, *, describe: Describe) -> ServiceParts:
    """The parts of the service around ``describe``, which opens the run's environment."""
    settings = context.settings
    is_text = settings.workload.kind == "text"
    bounds = bounds_of(config)
    envs = RunEnvironments(settings.workload, folder=settings.files_dir)
    own_tasks = OwnTasks(bounds, own=envs.own, env_of=envs.env_of)
    plays = settings.workload.turns_max > 1
    scorer = Scorer(
        own_tasks.task_of,
        ScoreCache(num_max=config.cache_entries),
        context.clock,
        deadline_s=config.score_deadline_s,
        attempts=config.score_attempts,
        own=own_tasks,
    )
    sandbox = open_sandbox(
        config.isolation,
        config.sandbox,
        max_runs=config.session_threads,
        environ=os.environ,
        log=context.log,
    )
    reports = FailureReports(context.stats, context.log, on_error=config.on_error)
    report = partial(_report_turn, reports)
    by_agents = settings.workload.of_verifiers()
    played = [(name, own) for name, own in envs.own.items() if plays and name not in by_agents]
    episodes = {name: OwnEpisodes(own, bounds, report=report) for name, own in played}
    scored = () if plays or TASK not in config.weights() else envs.env_of

    async def close_own() -> None:
        await own_tasks.close()
        for each in episodes.values():
            await each.close()

    try:
        for name in scored:
            await own_tasks.pool_of(name)
        for each in episodes.values():
            await each.start()
        verifiers = await open_verifiers(config, sandbox, folder=settings.files_dir)
    except TidegateError:
        await close_own()
        raise
    rewards = Rewards(scorer, verifiers, config, reports, seed=settings.seed, problem_of=envs.problem_of)
    sessions = session_table(
        config,
        envs,
        episodes,
        tools=tools_of(config, sandbox=sandbox),
        clock=context.clock,
        reward=rewards.of_episode,
    )
    description = EnvironmentAnswer(settings.workload, describe, context.log)
    loops: dict[str, Loop] = {"sweep": SweepLoop(context, sessions, idle_s=config.session_idle_s).run}
    if is_text:
        score = ScoreLoop(context, config, rewards)
        loops |= {"score": score.run, "heartbeat": score.heartbeat}

    async def close() -> None:
        await description.close()
        await sessions.close_all()
        sandbox.close()
        await close_own()
        await close_verifiers(verifiers)

    servicer = EnvironmentServicer(
        rewards, sessions, description, on_error=config.on_error, problem_of=envs.problem_of
    )
    return ServiceParts(loops=loops, servicers=[servicer.registration()], close=close)


def _report_turn(reports: FailureReports, failed: VerifierFailed, problem: Problem, text: str) -> None:
    """A conversation that failed in a turn, counted as a failure of the task's own verdict."""
    reports.judged({TASK: [failed]}, [AnsweredProblem(problem, text)])


SPEC = ServiceSpec(name="environment", config_type=EnvironmentConfig, build=build)
