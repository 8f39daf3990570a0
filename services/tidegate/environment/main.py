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
from tidegate.environment.own_code.blocking_episodes import BlockingEpisodes
from tidegate.environment.own_code.episodes import OwnEpisodes
from tidegate.environment.own_code.tasks import OwnTasks, own_task_of
from tidegate.environment.parts import bounds_of, close_verifiers, open_verifiers, tools_of
from tidegate.environment.rewards import Rewards
from tidegate.environment.sandbox.registry import open_sandbox
from tidegate.environment.scoring import Scorer
from tidegate.environment.servicer import EnvironmentServicer
from tidegate.environment.session_envs import make_session_env
from tidegate.environment.sessions import SessionLimits, SessionTable
from tidegate.environment.state import TASK, AnsweredProblem, ScoreCache
from tidegate.environment.tasks.port import Problem
from tidegate.environment.tasks.registry import get_task
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
    own = own_task_of(settings.workload, folder=settings.files_dir) if is_text else None
    own_tasks = OwnTasks(bounds, own=own)
    plays = settings.workload.turns_max > 1
    if is_text and TASK in config.weights() and not plays:
        await own_tasks.pool_of(settings.workload.env)
    scorer = Scorer(
        get_task,
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
    episodes = OwnEpisodes(own, bounds, report=partial(_report_turn, reports)) if own and plays else None
    try:
        if episodes is not None:
            await episodes.start()
        verifiers = await open_verifiers(config, sandbox, folder=settings.files_dir)
    except TidegateError:
        await own_tasks.close()
        if episodes is not None:
            await episodes.close()
        raise
    rewards = Rewards(scorer, verifiers, config, reports, seed=settings.seed)
    sessions = SessionTable(
        partial(
            make_session_env,
            allowed_modules=config.session_envs,
            tools=tools_of(config, sandbox=sandbox),
            own={} if episodes is None else {episodes.env_id: BlockingEpisodes(episodes)},
        ),
        SessionLimits(
            max_sessions=config.max_sessions,
            idle_s=config.session_idle_s,
            deadline_s=config.session_deadline_s,
            num_threads=config.session_threads,
        ),
        context.clock,
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
        await own_tasks.close()
        if episodes is not None:
            await episodes.close()
        await close_verifiers(verifiers)

    servicer = EnvironmentServicer(rewards, sessions, description, on_error=config.on_error)
    return ServiceParts(loops=loops, servicers=[servicer.registration()], close=close)


def _report_turn(reports: FailureReports, failed: VerifierFailed, problem: Problem, text: str) -> None:
    """A conversation that failed in a turn, counted as a failure of the task's own verdict."""
    reports.judged({TASK: [failed]}, [AnsweredProblem(problem, text)])


SPEC = ServiceSpec(name="environment", config_type=EnvironmentConfig, build=build)
