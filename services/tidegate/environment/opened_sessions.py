"""Sessions of a run's environments: as a worker serves them, and in another process outside of any run."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.conversations.tools import Tools
from tidegate.environment.judgements import VerifierFailed
from tidegate.environment.opened_scoring import OpenedScoring
from tidegate.environment.own_code.blocking_episodes import BlockingEpisodes
from tidegate.environment.own_code.episodes import OwnEpisodes
from tidegate.environment.parts import tools_of
from tidegate.environment.run_environments import RunEnvironments
from tidegate.environment.session_envs import (
    Episodes,
    PackageEpisodes,
    SessionVerdict,
    make_session_env,
)
from tidegate.environment.sessions import SessionLimits, SessionTable
from tidegate.environment.tasks.port import Problem, Score
from tidegate.runtime.clock import Clock, SystemClock


def session_table(
    config: EnvironmentConfig,
    envs: RunEnvironments,
    own: Mapping[str, OwnEpisodes],
    *,
    tools: Tools,
    clock: Clock,
    reward: Callable[[SessionVerdict], Awaitable[Score]],
) -> SessionTable:
    """The sessions of a run. ``own``: its own conversations by name, started; ``reward``: of a whole episode."""
    return SessionTable(
        partial(
            make_session_env,
            allowed_modules=config.session_envs,
            tools=tools,
            own=_episodes_of(envs, own, tools),
        ),
        SessionLimits(
            max_sessions=config.max_sessions,
            idle_s=config.session_idle_s,
            deadline_s=config.session_deadline_s,
            num_threads=config.session_threads,
        ),
        clock,
        reward=reward,
    )


@asynccontextmanager
async def open_sessions(
    config: EnvironmentConfig,
    scoring: OpenedScoring,
    *,
    reward: Callable[[SessionVerdict], Awaitable[Score]],
) -> AsyncGenerator[SessionTable]:
    """Sessions in this process, whose conversations of one's own run in children.

    Raises:
        ConfigError: a conversation cannot be loaded, or has no episodes of several turns.
    """
    async with AsyncExitStack() as stack:
        own: dict[str, OwnEpisodes] = {}
        for name, reference in scoring.envs.own.items():
            own[name] = OwnEpisodes(reference, scoring.bounds, report=_told_by_the_episode)
            stack.push_async_callback(own[name].close)
            await own[name].start()
        tools = tools_of(config, sandbox=scoring.sandbox)
        table = session_table(config, scoring.envs, own, tools=tools, clock=SystemClock(), reward=reward)
        stack.push_async_callback(table.close_all)
        yield table


def _told_by_the_episode(_failed: VerifierFailed, _problem: Problem, _text: str) -> None:
    """An episode whose conversation fails ends with the reason."""


def _episodes_of(envs: RunEnvironments, own: Mapping[str, OwnEpisodes], tools: Tools) -> dict[str, Episodes]:
    """What begins the episodes of the run's own conversations, and of tasks that the run has another name for."""
    named = {
        name: PackageEpisodes(env, tools)
        for name, env in envs.env_of.items()
        if name not in envs.own and name != env
    }
    return {**named, **{name: BlockingEpisodes(each) for name, each in own.items()}}
