"""Actor, learner and environment as their packages build them, with a paced engine and trainer and no Gymnasium."""

import asyncio
import random
from functools import partial

from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.exchange import StepExchange
from tidegate.actor.engines.inference_env import RemoteActing
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.inference import InferenceLoop
from tidegate.actor.main import assemble as assemble_actor
from tidegate.actor.main import assemble_tokens
from tidegate.core.spaces import DiscreteSpace, EnvironmentDescription
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.main import assemble as assemble_environment
from tidegate.inference.config import InferenceConfig
from tidegate.inference.main import assemble as assemble_inference
from tidegate.learner.checkpoint import CheckpointFolder
from tidegate.learner.config import LearnerConfig
from tidegate.learner.main import assemble as assemble_learner
from tidegate.learner.steps_log import StepsLog
from tidegate.learner.update_speed import UpdateSpeed
from tidegate.runtime.clock import Clock
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.service import ServiceContext, ServiceParts, ServiceSpec
from tidegate.sim.oracle import Oracle
from tidegate.sim.paced_engine import Pace, PacedEngine, PacedTrainer
from tidegate.sim.paced_policy import SEEN, PacedPolicy
from tidegate.sim.paced_tokens import PacedTokenEngine
from tidegate.sim.process import WorkerFlag
from tidegate.wire.vector_step import StepLayout


def actor_spec(
    pace: Pace,
    oracle: Oracle,
    rng: random.Random,
    true_clock: Clock,
    *,
    writes_tokens: bool = False,
    central_inference: bool = False,
) -> ServiceSpec:
    """An actor whose rollouts take the time of ``pace``; ``writes_tokens``: by an engine that writes tokens.

    ``central_inference``: the inference service acts. ``true_clock``: the oracle's time, whatever the actor's own clock
    says.
    """

    async def build(context: ServiceContext, config: ActorConfig) -> ServiceParts:
        control = EngineControl()
        if writes_tokens:
            tokens = PacedTokenEngine(pace, control, oracle)
            return assemble_tokens(context, config, engine=tokens, control=control)
        workload = context.settings.workload
        acting, inference = None, None
        if central_inference:
            policy, exchange = PacedPolicy(pace), StepExchange(WorkerFlag())
            acting = RemoteActing(
                policy,
                exchange,
                control,
                context.clock,
                num_envs=workload.num_envs,
                wait_s=config.inference_wait_s,
            )
            layout = StepLayout.of(policy, num_envs=workload.num_envs)
            inference = partial(InferenceLoop, context, exchange, layout, control=control)
        engine = PacedEngine(
            pace,
            control,
            context.clock,
            true_clock,
            oracle,
            rng,
            actor=context.instance,
            group_size=workload.num_samples if workload.kind == "text" else 1,
            acting=acting,
        )
        return assemble_actor(context, config, engine=engine, control=control, inference=inference)

    return ServiceSpec(name="actor", config_type=ActorConfig, build=build)


def inference_spec(pace: Pace) -> ServiceSpec:
    """An inference service whose network's calls take the time of ``pace``."""

    async def build(context: ServiceContext, config: InferenceConfig) -> ServiceParts:
        return assemble_inference(context, config, PacedPolicy(pace))

    return ServiceSpec(name="inference", config_type=InferenceConfig, build=build)


def learner_spec(pace: Pace, oracle: Oracle, true_clock: Clock) -> ServiceSpec:
    """A learner whose updates take the time of ``pace``; ``true_clock``: the oracle's time."""

    async def build(context: ServiceContext, config: LearnerConfig) -> ServiceParts:
        trainer = PacedTrainer(pace, true_clock, oracle)
        log = StepsLog(context.data_dir / "steps.jsonl", bytes_max=config.steps_file_bytes_max)
        folder = await asyncio.to_thread(
            CheckpointFolder, context.data_dir / "checkpoints", keep=config.keep_checkpoints
        )
        return assemble_learner(
            context,
            config,
            trainer=trainer,
            folder=folder,
            log=log,
            make_first_policy=lambda: None,
            speed=UpdateSpeed(),
        )

    return ServiceSpec(name="learner", config_type=LearnerConfig, build=build)


def environment_spec() -> ServiceSpec:
    """An environment service that knows what its environment observes, and opens none."""

    async def describe(workload: WorkloadConfig) -> EnvironmentDescription:
        return EnvironmentDescription(workload.env, observation_space=SEEN, action_space=DiscreteSpace(2))

    async def build(context: ServiceContext, config: EnvironmentConfig) -> ServiceParts:
        return await assemble_environment(context, config, describe=describe)

    return ServiceSpec(name="environment", config_type=EnvironmentConfig, build=build)
