"""Actor and learner as their rooms build them, with an engine and a trainer of the simulation in place of networks."""

import asyncio
import random

from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.port import Steering
from tidegate.actor.main import assemble as assemble_actor
from tidegate.actor.main import assemble_tokens
from tidegate.learner.checkpoint import CheckpointFolder
from tidegate.learner.config import LearnerConfig
from tidegate.learner.main import assemble as assemble_learner
from tidegate.learner.steps_log import StepsLog
from tidegate.runtime.service import ServiceContext, ServiceParts, ServiceSpec
from tidegate.sim.engine import Pace, PacedEngine, PacedTrainer
from tidegate.sim.paced_tokens import PacedTokenEngine
from tidegate.sim.truth import Truth


def actor_spec(pace: Pace, truth: Truth, rng: random.Random, *, writes_tokens: bool = False) -> ServiceSpec:
    """An actor whose rollouts take as long as ``pace`` says; ``writes_tokens``: by an engine that writes tokens."""

    async def build(context: ServiceContext, config: ActorConfig) -> ServiceParts:
        steering = Steering()
        if writes_tokens:
            tokens = PacedTokenEngine(pace, steering, truth)
            return assemble_tokens(context, config, engine=tokens, steering=steering)
        engine = PacedEngine(pace, steering, context.clock, truth, rng, actor=context.instance)
        return assemble_actor(context, config, engine=engine, steering=steering)

    return ServiceSpec(name="actor", config_type=ActorConfig, build=build)


def learner_spec(pace: Pace, truth: Truth) -> ServiceSpec:
    """A learner whose updates take as long as ``pace`` says."""

    async def build(context: ServiceContext, config: LearnerConfig) -> ServiceParts:
        trainer = PacedTrainer(pace, context.clock, truth)
        log = StepsLog(context.data_dir / "steps.jsonl", bytes_max=config.steps_file_bytes_max)
        folder = await asyncio.to_thread(
            CheckpointFolder, context.data_dir / "checkpoints", keep=config.keep_checkpoints
        )
        return assemble_learner(
            context, config, trainer=trainer, folder=folder, log=log, make_first_policy=lambda: None
        )

    return ServiceSpec(name="learner", config_type=LearnerConfig, build=build)
