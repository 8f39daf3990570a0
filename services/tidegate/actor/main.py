"""Builds the actor."""

from collections.abc import Awaitable, Callable
from functools import partial

from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.exchange import StepExchange
from tidegate.actor.engines.port import Engine, EngineControl
from tidegate.actor.engines.registry import (
    ENGINES,
    EngineEntry,
    EngineSetting,
    find_engine,
    open_engine,
    open_token_engine,
)
from tidegate.actor.engines.token_port import TokenEngine
from tidegate.actor.evaluation.held_out import AnswersProblems, HeldOutEvaluator
from tidegate.actor.evaluation.port import Evaluator
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.in_flight import InFlightTasks
from tidegate.actor.inference import InferenceLoop
from tidegate.actor.invested_work import report_investment
from tidegate.actor.loops import Runner, WorkLoops
from tidegate.actor.policy import ChecksPolicy, HeadPolicy, policy_follower
from tidegate.actor.publishing import Publisher
from tidegate.actor.rollouts.batch_runner import BatchRunner
from tidegate.actor.rollouts.deadlines import DeadlineWatch
from tidegate.actor.rollouts.environment_sessions import open_sessions
from tidegate.actor.rollouts.environment_watch import EnvironmentWatch
from tidegate.actor.rollouts.episode_player import EpisodePlayer
from tidegate.actor.rollouts.episode_runner import EpisodeRunner
from tidegate.actor.rollouts.predictions import Predictions
from tidegate.actor.rollouts.progress_checkpoints import ProgressCheckpoints
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.actor.rollouts.time_accounting import TimeAccounting
from tidegate.actor.servicer import ActorServicer
from tidegate.core.errors import ConfigError
from tidegate.core.records import PolicySnapshot
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.described_environment import ask_description
from tidegate.runtime.gpu_statistics import with_gpu_statistics
from tidegate.runtime.memory import keep_freed_memory
from tidegate.runtime.own_policy import load_policy_code
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import Loop, ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.settings_loop import SettingsFollower
from tidegate.wire.vector_step import StepLayout

FREED_BYTES_KEPT = 1 << 30


async def build(context: ServiceContext, config: ActorConfig) -> ServiceParts:
    """Build the actor's parts without starting them, once the environment is described.

    Raises:
        ConfigError: the engine does not fit the workload or the policy, or the policy not the environment.
        UnavailableError: the environment was not described in time.
    """
    # A new policy reuses the memory of the one before the last.
    keep_freed_memory(FREED_BYTES_KEPT)
    control = EngineControl()
    settings = context.settings
    description = (
        await ask_description(context.channel("environment"), context.drain, context.log)
        if settings.workload.kind == "segments"
        else None
    )
    entry = find_engine(config.engine, workload=settings.workload, policy=settings.policy)
    exchange = StepExchange() if entry.service else None
    setting = EngineSetting(
        workload=settings.workload,
        policy=settings.policy,
        seed=settings.seed,
        actor_index=context.index,
        threads=config.threads,
        device=config.device,
        evaluation_batch=config.evaluation_batch,
        slots=config.slots,
        cache_on_swap=config.cache_on_swap,
        server=config.server,
        data_dir=str(context.data_dir),
        description=description,
        actor_critic=config.actor_critic,
        exchange=exchange,
        inference_wait_s=config.inference_wait_s,
        q_learning=config.q_learning,
        files_dir=settings.files_dir,
    )
    if entry.port == "tokens":
        tokens = open_token_engine(config.engine, setting, control, context.clock)
        parts = (
            assemble_tokens(context, config, engine=tokens, control=control)
            if config.gateway is None
            else assemble_agents(context, config, config.gateway, engine=tokens, control=control)
        )
        return await with_gpu_statistics(parts, context) if _may_use_a_gpu(config, entry) else parts
    if config.gateway is not None:
        raise ConfigError(
            "Agents need an engine that writes tokens", fix="set actor.engine to torch, vllm or sglang"
        )
    engine = open_engine(config.engine, setting, control, context.clock)
    if description is None:
        return assemble(context, config, engine=engine, control=control)
    policy = build_policy(
        description,
        settings.policy,
        code=load_policy_code(settings.policy, folder=settings.files_dir),
    )
    if exchange is None:
        evaluator = _episodes_evaluator(context, config, control, policy, partial(_newest_of, control))
        return assemble(context, config, engine=engine, control=control, evaluator=evaluator)
    layout = StepLayout.of(policy, num_envs=settings.workload.num_envs)
    layout.check_size()
    watch = PolicyWatch(context)
    head = HeadPolicy(context, watch, engine, attempts=config.pull_attempts)
    return assemble(
        context,
        config,
        engine=engine,
        control=control,
        evaluator=_episodes_evaluator(context, config, control, policy, head.newest),
        watch=watch,
        inference=partial(InferenceLoop, context, exchange, layout, control=control),
    )


def _may_use_a_gpu(config: ActorConfig, entry: EngineEntry) -> bool:
    """Whether the engine computes on a GPU; of a server or an engine of the user's own, whether it may."""
    if entry is not ENGINES["torch"]:
        return config.device != "cpu"
    # It is open, so that torch is loaded.
    from tidegate.actor.engines.torch_engine import find_device

    return find_device(config.device).device != "cpu"


async def _newest_of(control: EngineControl) -> PolicySnapshot:
    assert control.newest is not None, "tasks start once there is a policy"
    return control.newest


def _episodes_evaluator(
    context: ServiceContext,
    config: ActorConfig,
    control: EngineControl,
    policy: SegmentPolicy,
    newest: Callable[[], Awaitable[PolicySnapshot]],
) -> Evaluator:
    # Actors of text need no environments.
    from tidegate.actor.evaluation.episodes import EpisodesEvaluator

    return EpisodesEvaluator(
        context,
        control,
        policy,
        newest,
        num_episodes=config.evaluation_episodes,
        steps_max=config.evaluation_steps_max,
        deadline_s=config.evaluation_deadline_s,
    )


def _held_out_evaluator(
    context: ServiceContext, config: ActorConfig, runner: AnswersProblems
) -> HeldOutEvaluator:
    return HeldOutEvaluator(context, runner, num_problems_max=config.evaluation_problems_max)


def assemble(
    context: ServiceContext,
    config: ActorConfig,
    *,
    engine: Engine,
    control: EngineControl,
    evaluator: Evaluator | None = None,
    watch: PolicyWatch | None = None,
    inference: Callable[..., InferenceLoop] | None = None,
) -> ServiceParts:
    """The parts of an actor around an engine of batches that reads ``control``; it evaluates by ``evaluator``.

    Without one the engine answers held-out problems. ``watch``: of POLICY, where others read it too. ``inference``:
    makes the loop that brings actions, and versions in place of weights.
    """
    actor = _ActorParts(
        context, config, engine, control, num_running=config.slots, watch=watch, inference=inference
    )
    runner = BatchRunner(
        context,
        engine=engine,
        control=control,
        predictions=actor.predictions,
        deadlines=actor.deadlines,
        slots=config.slots,
    )

    async def close() -> None:
        engine.close()

    environments = EnvironmentWatch(context, control, abandon=runner.abandon)
    return actor.with_runner(
        runner,
        evaluator or _held_out_evaluator(context, config, runner),
        loops={"environments": environments.run} if control.watched else {},
        close=close,
    )


def assemble_tokens(
    context: ServiceContext, config: ActorConfig, *, engine: TokenEngine, control: EngineControl
) -> ServiceParts:
    """The parts of an actor around an engine that writes tokens and reads ``control``."""
    num_running = max(1, config.slots // context.settings.workload.num_samples)
    actor = _ActorParts(context, config, engine, control, num_running=num_running)
    runner = actor.episode_runner(engine, TimeAccounting(context))
    loops: dict[str, Loop] = {
        "engine": engine.run,
        "progress": actor.checkpoints.run,
        "account": runner.account,
    }
    evaluator = _held_out_evaluator(context, config, runner)
    return actor.with_runner(runner, evaluator, loops=loops, close=engine.close)


def assemble_agents(
    context: ServiceContext,
    config: ActorConfig,
    gateway: GatewayConfig,
    *,
    engine: TokenEngine,
    control: EngineControl,
) -> ServiceParts:
    """The parts of an actor whose episodes external agents play.

    Raises:
        ConfigError: the run asks for a feature that agents do not support.
    """
    # Only actors with a gateway load its web server.
    from tidegate.actor.gateway.mixed_runner import MixedRunner
    from tidegate.actor.gateway.runner import AgentRunner, flows_of, played_by_agents

    workload = context.settings.workload
    actor = _ActorParts(
        context, config, engine, control, num_running=flows_of(gateway, num_samples=workload.num_samples)
    )
    time_accounting = TimeAccounting(context)
    agents = AgentRunner(
        context,
        gateway,
        engine=engine,
        control=control,
        served_policy=actor.served_policy,
        time_accounting=time_accounting,
    )
    loops: dict[str, Loop] = {"engine": engine.run, "gateway": agents.serve, "account": agents.account}
    if gateway.workers:
        loops["workers"] = agents.keep_workers
    runner: AgentRunner | MixedRunner = agents
    if played_by_agents(workload, gateway) != frozenset(workload.weights()):
        own = actor.episode_runner(engine, time_accounting)
        runner = MixedRunner(agents, own, served_policy=actor.served_policy)
        loops |= {"progress": actor.checkpoints.run, "account-own": own.account}
    evaluator = _held_out_evaluator(context, config, runner)
    return actor.with_runner(runner, evaluator, loops=loops, close=engine.close)


class _ActorParts:
    """The parts that all actors share."""

    def __init__(
        self,
        context: ServiceContext,
        config: ActorConfig,
        engine: ChecksPolicy,
        control: EngineControl,
        *,
        num_running: int,
        watch: PolicyWatch | None = None,
        inference: Callable[..., InferenceLoop] | None = None,
    ) -> None:
        """``num_running``: tasks that run at once; the rest as in ``assemble``."""
        self._context = context
        self._config = config
        self._control = control
        self._num_running = num_running
        self._in_flight = InFlightTasks(capacity=num_running + config.prefetch, finished_max=num_running)
        self.served_policy = ServedPolicy(control, self._in_flight.wakeup)
        self._watch = watch or PolicyWatch(context)
        self._policy = (
            policy_follower(context, self._watch, self.served_policy, engine, attempts=config.pull_attempts)
            if inference is None
            else inference(served_policy=self.served_policy)
        )
        self.checkpoints = ProgressCheckpoints(context, period_s=config.keep_progress_s)
        self.predictions = Predictions(context.settings.long_tail)
        self.deadlines = DeadlineWatch(context, self._watch, control, self.predictions)

    def episode_runner(self, engine: TokenEngine, time_accounting: TimeAccounting) -> EpisodeRunner:
        """The runner of the actor's own episodes on an engine that writes tokens."""
        context, control = self._context, self._control
        sessions = open_sessions(context) if context.settings.workload.turns_max > 1 else None
        player = EpisodePlayer(
            context,
            turns_max=context.settings.workload.turns_max,
            engine=engine,
            control=control,
            sessions=sessions,
            time_accounting=time_accounting,
        )
        return EpisodeRunner(
            context,
            engine=engine,
            player=player,
            control=control,
            predictions=self.predictions,
            deadlines=self.deadlines,
            checkpoints=self.checkpoints,
            served_policy=self.served_policy,
            time_accounting=time_accounting,
            slots=self._config.slots,
        )

    def with_runner(
        self,
        runner: Runner,
        evaluator: Evaluator,
        *,
        loops: dict[str, Loop],
        close: Callable[[], Awaitable[None]],
    ) -> ServiceParts:
        """The whole actor around ``runner`` and its ``evaluator``, with the loops of its engine."""
        context, config, in_flight = self._context, self._config, self._in_flight
        publisher = Publisher(context, in_flight, self.checkpoints, retry_delay_s=config.retry_delay_s)
        work = WorkLoops(
            context,
            config,
            in_flight=in_flight,
            runner=runner,
            control=self._control,
            predictions=self.predictions,
            served_policy=self.served_policy,
            evaluator=evaluator,
        )
        loops = {
            "watch": self._watch.run,
            "policy": self._policy.run,
            "fetch": work.fetch,
            "generate": work.generate,
            "heartbeat": work.heartbeat,
            "investment": partial(report_investment, context, in_flight),
            "settings": SettingsFollower(context).follow,
            **loops,
        }
        if self.deadlines.wanted:
            loops["deadlines"] = self.deadlines.run
        for number in range(config.max_unacked_publishes):
            loops[f"publish-{number}"] = publisher.run
        servicer = ActorServicer(
            context.instance, in_flight, self.served_policy, self._control, slots=self._num_running
        )
        return ServiceParts(loops=loops, servicers=[servicer.registration()], close=close)


SPEC = ServiceSpec(name="actor", config_type=ActorConfig, build=build)
