"""Episodes of several turns with a version of a run, played as in a run: by its player, engine and sessions."""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog
import torch

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.torch_engine import TorchEngine
from tidegate.actor.rollouts.environment_sessions import EpisodeSessions
from tidegate.actor.rollouts.episode import Episode
from tidegate.actor.rollouts.episode_player import EpisodePlayer
from tidegate.actor.rollouts.time_accounting import TimeAccounting
from tidegate.cli.evaluate.asked import SLOTS, Asked, OnProgress
from tidegate.cli.evaluate.scoring import open_rewards
from tidegate.core.errors import TidegateError
from tidegate.core.ids import PromptId, TaskId
from tidegate.core.records import PolicySnapshot, Task
from tidegate.environment.judgements import Judgement, VerifierFailed
from tidegate.environment.opened_sessions import open_sessions
from tidegate.environment.sessions import SessionTable
from tidegate.environment.state import ProblemOf
from tidegate.environment.tasks.port import Problem, Score
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.stored_policy import StoredPolicy
from tidegate.models.language_models import open_language_model, open_tokenizer
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.stats_board import StatsBoard
from tidegate.wire.clients.environment import EnvironmentStep, EpisodeProblem

# An environment that is away is asked again; an actor would wait for it for ever.
EPISODE_DEADLINE_S = 3600.0


class _Command(msgspec.Struct, frozen=True, eq=False):
    """Fulfils ``actor.rollouts.reporting.ReportingProcess``; its statistics are discarded."""

    stats: StatsBoard
    log: structlog.stdlib.BoundLogger
    clock: Clock
    index: int = 0


class _LocalWorker:
    """Fulfils ``environment_sessions.SessionWorker``: the sessions of this process."""

    def __init__(self, sessions: SessionTable, problem_of: ProblemOf | None) -> None:
        self._sessions = sessions
        self._problem_of = problem_of

    async def reset(
        self, env_id: str, *, seed: int, problem: EpisodeProblem | None = None, actions: Sequence[str] = ()
    ) -> tuple[str, str]:
        """See ``SessionWorker``."""
        asked = problem and Problem(problem.prompt_id, problem.prompt, problem.answer, problem.curriculum_bin)
        if asked is not None and self._problem_of is not None:
            asked = self._problem_of(env_id, asked)
        return await self._sessions.open(env_id, seed=seed, problem=asked, actions=actions)

    async def step(self, session_id: str, *, action: str) -> EnvironmentStep:
        """See ``SessionWorker``."""
        step = await self._sessions.step(session_id, action=action)
        return EnvironmentStep(**msgspec.structs.asdict(step))

    async def close(self, session_id: str) -> None:
        """See ``SessionWorker``."""
        await self._sessions.close(session_id)


def play_episodes(
    stored: StoredPolicy, plan: RunPlan, asked: Sequence[Asked], *, on_progress: OnProgress
) -> list[Judgement]:
    """The reward of an episode about each problem, in order; the same seeds give the same turns.

    Raises:
        ConfigError: the model, a conversation or a verifier cannot be opened.
        RecordError: the tensors are not of the run file's model.
        TidegateError: the engine failed.
    """
    return asyncio.run(_play_all(stored, plan, asked, on_progress))


async def _play_all(
    stored: StoredPolicy, plan: RunPlan, asked: Sequence[Asked], on_progress: OnProgress
) -> list[Judgement]:
    file, control = plan.file, EngineControl()
    log: structlog.stdlib.BoundLogger = structlog.get_logger("evaluate")
    process = _Command(StatsBoard(service="actor", instance="evaluate", started_at_s=0.0), log, SystemClock())
    engine = TorchEngine(
        open_language_model(file.policy, trains=False, device=torch.device("cpu")),
        open_tokenizer(file.policy),
        slots=SLOTS,
        control=control,
        clock=process.clock,
        threads=torch.get_num_threads(),
    )
    policy = PolicySnapshot(stored.version, stored.tensors, base_digest=stored.base_digest)
    engine.check_policy(policy)
    control.newest = policy
    async with (
        open_rewards(plan) as (rewards, scoring),
        open_sessions(plan.services["environment"], scoring, reward=rewards.of_episode) as table,
    ):
        player = EpisodePlayer(
            process,
            turns_max=file.workload.turns_max,
            engine=engine,
            control=control,
            sessions=EpisodeSessions(process, [_LocalWorker(table, scoring.envs.problem_of)]),
            time_accounting=TimeAccounting(process),
        )
        places = asyncio.Semaphore(min(SLOTS, plan.services["environment"].max_sessions))
        writing = asyncio.create_task(engine.run())
        playing = asyncio.gather(
            *(
                _play(player, places, _task_of(each, number, stored), on_progress)
                for number, each in enumerate(asked)
            )
        )
        try:
            await asyncio.wait({writing, playing}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                await writing  # which failed
            return await playing
        finally:
            playing.cancel()
            control.stop = True
            await asyncio.gather(writing, playing, return_exceptions=True)


async def _play(
    player: EpisodePlayer, places: asyncio.Semaphore, task: Task, on_progress: OnProgress
) -> Judgement:
    episode = Episode(index=0)
    async with places:
        try:
            async with asyncio.timeout(EPISODE_DEADLINE_S):
                await player.play(task, episode)
        except TimeoutError:
            return VerifierFailed(f"the episode was not over within {EPISODE_DEADLINE_S:g} s")
        except TidegateError as error:
            return VerifierFailed(str(error))
        finally:
            on_progress(1)
    return Score(episode.reward or 0.0, episode.components, episode.log)


def _task_of(asked: Asked, number: int, stored: StoredPolicy) -> Task:
    problem = asked.problem
    return Task(
        task_id=TaskId(f"evaluate-{number}"),
        run_id=stored.run,
        kind="group",
        required_version=stored.version,
        prompt_id=PromptId(problem.prompt_id),
        prompt=problem.prompt,
        answer=problem.answer,
        env_id=asked.env,
        curriculum_bin=problem.bin,
        seed=asked.seed,
        sampler=msgspec.structs.replace(stored.file.workload.sampler, temperature=asked.temperature),
    )
