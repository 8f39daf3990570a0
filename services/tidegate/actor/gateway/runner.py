"""The runner of external agents, which the actor's loops drive in place of ``EpisodeRunner``.

A task is a group of episodes, one per sample, each played by a separate agent. The task is done once all episodes have
ended and are scored. It is refused when no agent called, so that another actor or a later attempt runs it; it is
dropped where the run file drops episodes without a reward. The actor cannot save an agent's state: a stopped episode
restarts from its beginning on another actor.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from tidegate.actor.engines.port import Completed, EngineControl, Rollouts, Sample
from tidegate.actor.engines.token_port import TokenEngine
from tidegate.actor.gateway.calls import Caller
from tidegate.actor.gateway.config import HOST_VARIABLE, OPERATOR_KEY_VARIABLE, GatewayConfig
from tidegate.actor.gateway.episode_table import EpisodeTable
from tidegate.actor.gateway.episodes import AgentEpisode
from tidegate.actor.gateway.formats import open_format
from tidegate.actor.gateway.groups import EpisodeGroup
from tidegate.actor.gateway.judging import EpisodeJudge, NoRewardError
from tidegate.actor.gateway.programs import arguments_of, environment_of, run_program
from tidegate.actor.gateway.server import GatewayServer, reward_url, task_of
from tidegate.actor.gateway.workers import AgentWorkers
from tidegate.actor.rollouts.engine_stats import report_engine
from tidegate.actor.rollouts.heldout import HeldOutProblem, asked, complete_under_one_version
from tidegate.actor.rollouts.outcomes import DroppedTask, RefusedTask, RolloutResult
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.actor.rollouts.time_accounting import TimeAccounting
from tidegate.catalogue import gateway as gateway_stats
from tidegate.core.errors import ConfigError, TidegateError, UnavailableError
from tidegate.core.records import Task
from tidegate.runtime.config import Settings, WorkloadConfig
from tidegate.runtime.races import is_set_within, run_until
from tidegate.runtime.service import ServiceContext

T = TypeVar("T")

# Period of checks whether an agent over HTTP is idle.
IDLE_LOOK_S = 0.25
# An agent writes its own prompts, each of which is checked when it calls: the task's is a question to the agent, of any
# length and form. This one has a token in every alphabet.
SHORT_PROMPT = "1"
# Of a task without a call.
_FIX_OF_PROGRAM = "run actor.gateway.command by hand with OPENAI_BASE_URL and OPENAI_API_KEY of any server"
_FIX_OF_LIBRARY = (
    "try `tidegate check --play`; an environment that calls a model of its own cannot be trained"
)


class AgentRunner:
    """Runs each task in a separate flow; as many tasks as ``episodes_max`` admits with all of their episodes."""

    def __init__(
        self,
        context: ServiceContext,
        config: GatewayConfig,
        *,
        engine: TokenEngine,
        control: EngineControl,
        served_policy: ServedPolicy,
        time_accounting: TimeAccounting,
    ) -> None:
        """``served_policy``: holds one policy while an evaluation runs. ``serve`` opens the gateway.

        Raises:
            ConfigError: the run asks for a feature that agents do not support.
        """
        _check_run(context.settings)
        self.flows_max = flows_of(config, num_samples=context.settings.workload.num_samples)
        self.batch_max = 1
        self._context = context
        self._config = config
        self._engine = engine
        self._control = control
        self._served_policy = served_policy
        self._time_accounting = time_accounting
        self._envs = played_by_agents(context.settings.workload, config)
        self._table = EpisodeTable(config, context.clock)
        self._places = asyncio.Semaphore(config.episodes_max)
        self._operator_key = os.environ.get(OPERATOR_KEY_VARIABLE, "")
        self._workers: AgentWorkers | None = None
        if config.workers:
            # Its own workers need a key; no other process gets this one.
            self._operator_key = self._operator_key or secrets.token_urlsafe(32)
            given = {"TIDEGATE_WORKLOAD": _json(_workload_of(context.settings, envs=self._envs))}
            self._workers = AgentWorkers(
                config, context.clock, context.stats, context.log, given=given, ended=self._worker_ended
            )
        self._judge = EpisodeJudge(context, config, engine.tokenizer)
        caller = Caller(engine, open_format(engine.tokenizer, style=config.tool_calls), config, context.clock)
        self.server = GatewayServer(
            caller,
            self._table,
            config,
            context.clock,
            context.stats,
            operator_key=self._operator_key,
            own_host=os.environ.get(HOST_VARIABLE, ""),
        )
        self._serving = asyncio.Event()
        self._stopping = asyncio.Event()
        self._closed = asyncio.Event()

    def plays(self, env_id: str) -> bool:
        """Whether agents run the tasks of an environment."""
        return env_id in self._envs

    @property
    def num_open(self) -> int:
        """Open episodes: claimed or waiting for a claim."""
        return self._table.num_open

    # -- lifecycle -------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve HTTP until ``close``.

        Raises:
            ConfigError: the port is taken.
        """
        context = self._context
        await self.server.start(port=_port(self._config, context))
        context.log.info("gateway_ready", address=self.server.address)
        self._serving.set()
        try:
            await self._closed.wait()
        finally:
            await self.server.close()

    async def keep_workers(self) -> None:
        """Run the agents' workers, where the run file has some, until ``stop``."""
        if self._workers is None:
            return
        await self._serving.wait()
        await self._workers.run(
            url=f"http://{self.server.address}", key=self._operator_key, stopping=self._stopping
        )

    async def account(self) -> None:
        """Keep the statistics current until draining."""

        def also() -> None:
            self._time_accounting.update()
            self._context.stats.set(gateway_stats.OPEN_EPISODES, self._table.num_open)

        await report_engine(self._context, self._control, also)

    def stop(self) -> None:
        """End the agents; their tasks are released to other actors."""
        self._control.stop = True
        self._stopping.set()

    def close(self) -> None:
        """Stop serving."""
        self._closed.set()

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def run(self, tasks: Sequence[Task]) -> AsyncGenerator[RolloutResult]:
        """Run one task; a stopped one has no result."""
        [task] = tasks
        try:
            self._engine.check_task(msgspec.structs.replace(task, prompt=SHORT_PROMPT))
        except TidegateError as error:
            yield RefusedTask(task, error)
            return
        with self._time_accounting.writing():
            result = await run_until(self._stopping.wait(), self._result(task))
        if result is not None:
            yield result

    async def _result(self, task: Task) -> RolloutResult | None:
        """The result of a task; None when it was stopped."""
        clock = self._context.clock
        started_at_s = clock.now_s()
        group = EpisodeGroup(size=task.num_samples)
        try:
            samples = await self._together(
                [self._sample(task, group, sample_index=index) for index in range(task.num_samples)]
            )
        except NoRewardError as error:
            return DroppedTask(
                task=task,
                by="failed",
                reason="failed",
                detail=str(error),
                length=error.num_steps,
                elapsed_s=max(0.0, clock.now_s() - started_at_s),
                num_made=task.num_samples,
            )
        except TidegateError as error:
            return None if self._stopping.is_set() else RefusedTask(task, error)
        return Rollouts(task, tuple(samples), started_at_s, clock.now_s())

    async def _together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """All results in order; the first that fails ends the others."""
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(work) for work in works]
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        return [done.result() for done in running]

    # -- episodes --------------------------------------------------------------------------------------------------

    async def _sample(self, task: Task, group: EpisodeGroup, *, sample_index: int) -> Sample:
        """Play and score one episode of a group.

        An episode without a call is restarted; one with calls is not, because the policy has already chosen: only with
        its whole task, after the death of its worker. One that was claimed with all others of its group is not
        restarted by itself: its verdict is also that of the others.

        Raises:
            NoRewardError: the episode has no reward, and the run file drops such episodes.
            TidegateError: no agent, no engine or no judge is available.
        """
        await self._serving.wait()
        why = ""
        for attempt in range(self._config.attempts):
            async with self._places:
                episode = self._table.open(task, sample_index=sample_index, attempt=attempt)
                try:
                    why = await self._hold(episode, group)
                finally:
                    self._table.close(episode)
            if group.is_claimed:
                self._judge.check_group(group, episode, why=why)
            if episode.recorder.num_turns:
                self._judge.check_worker(episode)
                self._context.stats.add(gateway_stats.EPISODES)
                return await self._judge.sample_of(episode, why=why)
            self._context.stats.add(gateway_stats.EPISODES_WITHOUT_CALLS)
        raise UnavailableError(
            f"No agent called in {self._config.attempts} episodes of task {task.task_id}",
            why=why,
            fix=_FIX_OF_LIBRARY if self._config.has_library_worker else _FIX_OF_PROGRAM,
        )

    def _worker_ended(self, worker: str, why: str) -> None:
        self._table.worker_ended(worker, why=why)

    async def _hold(self, episode: AgentEpisode, group: EpisodeGroup) -> str:
        """Let an agent play its episode to the end; returns the reason of the end, for operators."""
        if self._config.command and not self._config.workers:
            return await self._hold_program(episode)
        return await self._hold_visitor(episode, group)

    async def _hold_program(self, episode: AgentEpisode) -> str:
        config = self._config
        base = f"http://{self.server.address}"
        given = {
            "OPENAI_BASE_URL": f"{base}/v1",
            "OPENAI_API_KEY": episode.api_key,
            "TIDEGATE_TASK": _json(task_of(episode)),
        }
        if config.reward == "posted":
            reward = {
                "url": reward_url(base, episode),
                "key": episode.reward_key,
                "answer": episode.task.answer,
            }
            given["TIDEGATE_REWARD"] = _json(reward)
        end = await run_program(
            arguments_of(config.command, prompt=episode.task.prompt),
            environment=environment_of(os.environ, passed=config.pass_env, given=given),
            ended=episode.ended,
            deadline_s=config.episode_deadline_s,
            kill_grace_s=config.kill_grace_s,
        )
        if end.exit_code != 0:
            self._context.stats.add(gateway_stats.PROGRAMS_FAILED)
        return str(end)

    async def _hold_visitor(self, episode: AgentEpisode, group: EpisodeGroup) -> str:
        config, clock = self._config, self._context.clock
        self._table.offer(episode, group)
        await self._wait_for_claim(episode, group)
        deadline_s = clock.monotonic_s() + config.episode_deadline_s
        while clock.monotonic_s() < deadline_s:
            if await is_set_within(episode.ended, timeout_s=IDLE_LOOK_S):
                because = episode.ended_because
                return f"its agent ended it: {because}" if because else "its agent ended it"
            used = group if group.is_claimed else episode
            if not used.num_in_flight and clock.monotonic_s() - used.used_at_s > config.idle_s:
                return f"its agent was idle for {config.idle_s:g} s"
        return f"its deadline of {config.episode_deadline_s:g} s passed"

    async def _wait_for_claim(self, episode: AgentEpisode, group: EpisodeGroup) -> None:
        """Until an agent claims an episode, or its whole group, all of which may have to wait for places first.

        Raises:
            UnavailableError: none came in time.
        """
        config, clock = self._config, self._context.clock
        # Places are held by episodes that end by then.
        last_s = clock.monotonic_s() + config.claim_deadline_s + config.episode_deadline_s
        while True:
            is_offered = group.num_offered >= min(group.size, config.episodes_max)
            until_s = min(last_s, group.offered_at_s + config.claim_deadline_s) if is_offered else last_s
            left_s = until_s - clock.monotonic_s()
            if await is_set_within(episode.claimed, timeout_s=min(max(left_s, 0.0), IDLE_LOOK_S)):
                return
            if left_s <= 0.0:
                raise UnavailableError(
                    f"No agent came for an episode within {config.claim_deadline_s:g} s",
                    fix="start agents that ask POST /tidegate/episodes, or more of them",
                )

    # -- evaluation ------------------------------------------------------------------------------------------------

    async def complete(self, task: Task, problems: Sequence[HeldOutProblem]) -> Completed:
        """Play one episode per held-out problem, all under one policy, which is held meanwhile.

        Raises:
            UnavailableError: the actor is draining, an agent is missing, or the engine changed its policy.
        """

        def play() -> Awaitable[list[Sample] | None]:
            # Each by itself: the samples of a group are of one problem.
            episodes = [
                self._sample(asked(task, problem), EpisodeGroup(size=1), sample_index=index)
                for index, problem in enumerate(problems)
            ]
            return run_until(self._stopping.wait(), self._together(episodes))

        return await complete_under_one_version(self._served_policy, play)


def flows_of(config: GatewayConfig, *, num_samples: int) -> int:
    """Concurrent tasks: as many as ``episodes_max`` admits with all of their episodes, at least one."""
    return max(1, config.episodes_max // num_samples)


def _port(config: GatewayConfig, context: ServiceContext) -> int:
    """The port to listen on. A pod does not share its ports, and its index is a large number."""
    shares_machine = not context.settings.listen
    return config.port + context.index if config.port and shares_machine else config.port


def played_by_agents(workload: WorkloadConfig, config: GatewayConfig) -> frozenset[str]:
    """The environments whose tasks agents run: all, but the worker of `verifiers` plays those of its library alone."""
    everything = frozenset(workload.weights())
    return (workload.of_verifiers() or everything) if config.has_library_worker else everything


def _workload_of(settings: Settings, *, envs: Collection[str]) -> dict[str, Any]:
    """What a worker needs to know of the run.

    ``envs``: those that it plays, by the name that tasks have; ``env``: where there is one.
    """
    workload = settings.workload
    of_worker = {
        name: {"env": part.env, "env_kwargs": part.env_kwargs}
        for name, part in workload.by_name().items()
        if name in envs
    }
    return {
        "env": workload.env,
        "env_kwargs": workload.env_kwargs,
        "envs": of_worker,
        "files_dir": settings.files_dir,
    }


def _check_run(settings: Settings) -> None:
    """Refuse a run that needs features which agents do not support.

    Raises:
        ConfigError: it cuts, caps or delays rollouts, or stops groups early; the message names the setting.
    """
    tail = settings.long_tail
    wrong = [
        name
        for name, is_set in (
            ("long_tail.policy", tail.policy != "wait"),
            ("long_tail.cap_quantile", tail.cap_quantile > 0.0),
            ("long_tail.early_stop_after", tail.early_stop_after > 0),
            ("workload.latency", bool(settings.workload.latency)),
        )
        if is_set
    ]
    if wrong:
        raise ConfigError(
            f"{' and '.join(wrong)} cannot be combined with actor.gateway",
            why="the actor does not control an agent between two calls",
            fix="leave it out; episodes end at actor.gateway.episode_deadline_s",
        )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
